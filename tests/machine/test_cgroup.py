import pytest

from fullstride.machine import cgroup

from .machines import V1_MOUNT, V2_MOUNT, write

V2 = "sys/fs/cgroup"
V1 = "sys/fs/cgroup/cpu,cpuacct"


def v2(tmp_path, group, files, mount=V2_MOUNT):
    files = {f"{V2}/{name}": text for name, text in files.items()}
    return write(tmp_path, {"proc/self/cgroup": f"0::{group}\n", "proc/self/mountinfo": mount + "\n", **files})


def v1(tmp_path, group, files, mount=V1_MOUNT):
    files = {f"{V1}/{name}": text for name, text in files.items()}
    groups = f"12:memory:{group}\n4:cpu,cpuacct:{group}\n1:name=systemd:/init\n"
    return write(tmp_path, {"proc/self/cgroup": groups, "proc/self/mountinfo": mount + "\n", **files})


@pytest.mark.parametrize(
    ("text", "expected"),
    [("max 100000\n", None), ("150000 100000\n", 1.5), ("400000 100000\n", 4.0), ("50000\n", 0.5)],
)
def test_v2_quota(tmp_path, text, expected):
    assert cgroup.cpu_quota(v2(tmp_path, "/a", {"a/cpu.max": text})) == expected


@pytest.mark.parametrize(("quota", "expected"), [("-1\n", None), ("150000\n", 1.5), ("20000\n", 0.2)])
def test_v1_quota(tmp_path, quota, expected):
    files = {"a/cpu.cfs_quota_us": quota, "a/cpu.cfs_period_us": "100000\n"}
    assert cgroup.cpu_quota(v1(tmp_path, "/a", files)) == expected


def test_smallest_quota_on_the_way_up_holds_in_v2(tmp_path):
    files = {"a/cpu.max": "200000 100000", "a/b/cpu.max": "max 100000", "a/b/c/cpu.max": "600000 100000"}
    assert cgroup.cpu_quota(v2(tmp_path, "/a/b/c", files)) == 2.0


def test_smallest_quota_on_the_way_up_holds_in_v1(tmp_path):
    files = {
        "cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000",
        "a/cpu.cfs_quota_us": "300000", "a/cpu.cfs_period_us": "200000",
        "a/b/cpu.cfs_quota_us": "400000", "a/b/cpu.cfs_period_us": "100000",
    }  # fmt: skip
    assert cgroup.cpu_quota(v1(tmp_path, "/a/b", files)) == 1.5


def test_quota_of_another_group_does_not_count(tmp_path):
    files = {"a/cpu.max": "max 100000", "a/below/cpu.max": "100000 100000", "other/cpu.max": "100000 100000"}
    assert cgroup.cpu_quota(v2(tmp_path, "/a", files)) is None


def test_container_sees_its_group_as_the_top(tmp_path):
    """With cgroup namespaces the path is "/", without them that of the host, which the mount does not show."""
    mount = V2_MOUNT.replace(" / ", " /docker/1234 ")
    for group in ("/", "/docker/1234", "/../1234", "/docker/elsewhere"):
        assert cgroup.cpu_quota(v2(tmp_path, group, {"cpu.max": "300000 100000"}, mount)) == 3.0


def test_hybrid_system_reads_both_versions(tmp_path):
    root = v1(tmp_path, "/a", {"a/cpu.cfs_quota_us": "500000", "a/cpu.cfs_period_us": "100000"})
    unified = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"
    write(
        root,
        {
            "proc/self/cgroup": "4:cpu,cpuacct:/a\n0::/b\n",
            "proc/self/mountinfo": f"{V1_MOUNT}\n{unified}\n",
            "sys/fs/cgroup/unified/b/cpu.max": "200000 100000",
        },
    )
    assert cgroup.cpu_quota(root) == 2.0


def test_mount_point_with_a_space(tmp_path):
    root = v2(tmp_path, "/", {}, V2_MOUNT.replace("/sys/fs/cgroup", r"/my\040groups"))
    write(root, {"my groups/cpu.max": "100000 100000"})
    assert cgroup.cpu_quota(root) == 1.0


@pytest.mark.parametrize(("text", "expected"), [("max\n", None), ("536870912\n", 512 << 20)])
def test_v2_memory_limit(tmp_path, text, expected):
    assert cgroup.memory_limit(v2(tmp_path, "/a", {"a/memory.max": text})) == expected


@pytest.mark.parametrize(("text", "expected"), [("9223372036854771712\n", None), ("536870912\n", 512 << 20)])
def test_v1_memory_limit(tmp_path, text, expected):
    mount = "33 20 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,memory"
    assert cgroup.memory_limit(v1(tmp_path, "/a", {"a/memory.limit_in_bytes": text}, mount)) == expected


def test_v2_memory_left_is_what_the_group_does_not_hold(tmp_path):
    """File pages that nobody has used lately are as good as free; the group with the least left counts."""
    files = {
        "a/memory.max": "1000", "a/memory.current": "700", "a/memory.stat": "anon 1\ninactive_file 50\nfile 9\n",
        "a/b/memory.max": "900", "a/b/memory.current": "100",
    }  # fmt: skip
    assert cgroup.memory_left(v2(tmp_path, "/a/b", files)) == 350


def test_v1_memory_left_counts_groups_below(tmp_path):
    mount = "33 20 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,memory"
    files = {
        "a/memory.limit_in_bytes": "1000", "a/memory.usage_in_bytes": "400",
        "a/memory.stat": "inactive_file 10\ntotal_inactive_file 100\n",
    }  # fmt: skip
    assert cgroup.memory_left(v1(tmp_path, "/a", files, mount)) == 700


def test_a_full_group_has_nothing_left(tmp_path):
    assert cgroup.memory_left(v2(tmp_path, "/a", {"a/memory.max": "100", "a/memory.current": "120"})) == 0
    assert cgroup.memory_left(v2(tmp_path, "/a", {"a/memory.max": "max", "a/memory.current": "120"})) is None


def test_no_cgroups_mean_no_limits(tmp_path):
    assert cgroup.memory_left(tmp_path) is None
    assert cgroup.cpu_quota(tmp_path) is None
    assert cgroup.memory_limit(tmp_path) is None
