#!/bin/bash
# emulate_avx512.sh [OP ...]: runs the C++ test program, for these ops or all of them, on an emulated CPU with
# AVX-512 and AVX512-BF16, for machines whose own CPU lacks them. Returns 0 only if both variants ran and none failed.
#
# It builds the test program as usual, puts it with its shared libraries into an initramfs under a Debian kernel, and
# boots that in Bochs as a Sapphire Rapids. Bochs interprets: starting takes half a minute of CPU time, and the tests
# themselves many times what they take natively, so name the ops that matter.
#
# Needs a Debian or Ubuntu-like x86-64 host with apt, a C++ compiler with static libc, CMake and Ninja; not root.
# Bochs >= 3.0, which has BF16, the kernel and the boot loader are Debian packages. They are unpacked, not installed,
# below the cache directory, and run with their own libc. Nothing outside that directory is written.
#   CACHE=dir       what is downloaded and built, reused by the next run, one run at a time
#                   (default: ~/.cache/fullstride_avx512)
#   CMAKE_ARGS=...  more options for CMake, e.g. -DFULLSTRIDE_KERNELS=layer_norm
#   MIRROR=url      a Debian mirror (default: the one this host's apt uses)
#   SECONDS_MAX=n   give up after n seconds (default: 3600)
set -euo pipefail
project=$(cd "$(dirname "$0")/../.." && pwd)
cache=${CACHE:-$HOME/.cache/fullstride_avx512}
root=$cache/root apt=$cache/apt build=$cache/build boot=$cache/boot
mkdir -p "$cache"
exec 9> "$cache/lock"
flock -n 9 || { echo "another run uses $cache"; exit 1; }

# ---- the emulator -------------------------------------------------------------------------------------------
# An apt of its own, with an empty list of installed packages, downloads the packages with all they depend on.
if [ ! -e "$root/complete" ]; then
  rm -rf "$root" "$apt"
  mkdir -p "$root" "$apt"/{lists,cache/archives}/partial
  mirror=${MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m1 '/debian/$')}
  echo "deb $mirror trixie main" > "$apt/sources.list"
  : > "$apt/status"
  cat > "$apt/apt.conf" <<END
Dir::Etc::sourcelist "$apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State "$apt";
Dir::State::status "$apt/status";
Dir::Cache "$apt/cache";
Dir::Log "$apt";
APT::Architecture "amd64";
APT::Install-Recommends "false";
APT::Sandbox::User "$(id -un)";
END
  export APT_CONFIG=$apt/apt.conf
  apt-get -qq update
  apt-get -qq install --yes --download-only \
    bochs bochs-term bochsbios vgabios linux-image-cloud-amd64 isolinux syslinux-common xorriso cpio > "$apt/log"
  for package in "$apt"/cache/archives/*.deb; do dpkg -x "$package" "$root"; done
  rm -rf "$apt"
  touch "$root/complete"
fi
libraries=$root/usr/lib/x86_64-linux-gnu
in_root() { "$root/usr/lib64/ld-linux-x86-64.so.2" --library-path "$libraries" "$root/usr/bin/$1" "${@:2}"; }

# ---- the test program and the medium ------------------------------------------------------------------------
# shellcheck disable=SC2086
cmake -S "$project" -B "$build" -G Ninja -DFULLSTRIDE_TESTS=ON -DFULLSTRIDE_KERNELS= ${CMAKE_ARGS:-} \
  > "$cache/build.log"
nice -n 19 cmake --build "$build" >> "$cache/build.log" || { cat "$cache/build.log"; exit 1; }
program=$build/csrc/tests/fullstride_tests

rm -rf "$boot"
mkdir -p "$boot"/{initramfs,iso}
cp "$program" "$boot/initramfs/tests"
ldd "$program" | grep -o '/[^ ]*' | xargs -I{} cp -L --parents {} "$boot/initramfs"
# The first process runs the tests with its own arguments, then ends the emulation through a port of Bochs.
"${CXX:-c++}" -O1 -static -o "$boot/initramfs/init" -x c++ - <<'END'
#include <stdio.h>
#include <sys/io.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>
int main(int, char** argv) {
  int status = -1;
  if (!fork()) _exit(execv("/tests", argv));
  wait(&status);
  printf("wait status %d\n", status);
  fflush(stdout);
  tcdrain(1);
  iopl(3);
  for (const char* p = "Shutdown"; *p; ++p) outb(*p, 0x8900);
}
END
(cd "$boot/initramfs" && find . | in_root cpio -o -H newc --quiet | gzip -1) > "$boot/iso/initrd"
cp "$root"/boot/vmlinuz-* "$boot/iso/vmlinuz"
cp "$root"/usr/lib/ISOLINUX/isolinux.bin "$root"/usr/lib/syslinux/modules/bios/ldlinux.c32 "$boot/iso"
# Two threads, so that work is cut although there is one CPU.
cat > "$boot/iso/isolinux.cfg" <<END
default tests
label tests
  kernel /vmlinuz
  append initrd=/initrd console=ttyS0,115200 loglevel=1 mitigations=off panic=-1 reboot=t OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive -- avx512 avx512_bf16 $*
END
in_root xorriso -as mkisofs -quiet -o "$boot/boot.iso" -b isolinux.bin -c boot.cat -no-emul-boot -boot-load-size 4 \
  -boot-info-table "$boot/iso" 2> "$boot/xorriso.log"

# ---- the run ------------------------------------------------------------------------------------------------
# Excluded are features that Linux would use and Bochs 3.0 does not emulate well enough to boot; no kernel needs them.
cat > "$boot/bochsrc" <<END
cpu: model=sapphire_rapids, ips=100000000, reset_on_triple_fault=0, exclude_features="amx amx_int8 amx_bf16 waitpkg la57 cet pku pks uintr"
memory: guest=1024, host=1024
romimage: file=$root/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=$root/usr/share/bochs/VGABIOS-lgpl-latest
ata0-master: type=cdrom, path=$boot/boot.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=$boot/output
display_library: term
log: $boot/bochs.log
panic: action=fatal
error: action=ignore
info: action=ignore
END
# Its display wants a terminal, which script(1) provides; it ends by a "panic", the shutdown asked for.
# exec, so that script(1) can kill it when the time is over.
export LTDL_LIBRARY_PATH=$libraries/bochs/plugins TERM=xterm root libraries boot
bochs='"$root"/usr/lib64/ld-linux-x86-64.so.2 --library-path "$libraries" "$root"/usr/bin/bochs-bin -q -f "$boot"/bochsrc'
timeout "${SECONDS_MAX:-3600}" nice -n 19 script -qec "exec $bochs" /dev/null < /dev/null > "$boot/screen" 2>&1 || true

[ -s "$boot/output" ] || { echo "nothing was printed; see $boot"; exit 1; }
tr -d '\r' < "$boot/output" | tee "$boot/output.txt"
grep -q '^[1-9][0-9]* passed, 0 failed$' "$boot/output.txt" && grep -q '^wait status 0$' "$boot/output.txt" &&
  ! grep -q 'not on this machine' "$boot/output.txt"
