#include "test.h"

TEST(stream, rates_compute_what_they_say) {
  for (int64_t n : kSizes) {
    const auto b = random_floats(n), c = random_floats(n, 2);
    std::vector<float> a(n), total(1);
    KERNEL(stream_triad)(a.data(), b.data(), c.data(), 2.0f, n);
    double expected = 0;
    for (int64_t i = 0; i < n; ++i) CHECK_CLOSE(a[i], b[i] + 2.0 * c[i], 1e-6 * (1 + fabs(a[i])));
    KERNEL(stream_scale)(a.data(), 0.5f, n);
    for (int64_t i = 0; i < n; ++i) CHECK_CLOSE(a[i], (b[i] + 2.0 * c[i]) / 2, 1e-6 * (1 + fabs(a[i])));
    for (int64_t i = 0; i < n; ++i) expected += a[i];
    KERNEL(stream_read)(a.data(), n, total.data());
    CHECK_CLOSE(total[0], expected, 1e-3);
  }
}
