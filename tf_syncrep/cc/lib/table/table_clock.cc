#include "tf_syncrep/cc/lib/table/table_clock.h"

#include <algorithm>

namespace tf_syncrep {

TableClock::Times::Times(int32_t latest) : latest_(latest) {
  of_age_.fill(-1);
  Add(latest);
}

// Ages below 128 have classes of their own; above, the class says where the
// highest bit is, and the six bits below it.
int TableClock::Times::AgeClass(uint32_t age) {
  if (age < 64) {
    return static_cast<int>(age);
  }
  const int shift = 31 - __builtin_clz(age) - 6;
  return shift * 64 + static_cast<int>(age >> shift);
}

void TableClock::Times::Add(int32_t time) {
  int32_t& kept = of_age_[AgeClass(static_cast<uint32_t>(latest_ - time))];
  kept = std::max(kept, time);
}

void TableClock::Set(int32_t now) {
  const MutexLock lock(mu_);
  if (num_ == static_cast<int>(times_.size())) {
    ForgetSome();
  }
  // Who sets it back begins anew.
  while (num_ > 0 && times_[num_ - 1] >= now) {
    --num_;
  }
  times_[num_++] = now;
  now_ = now;
}

void TableClock::Set(const Times& times) {
  const MutexLock lock(mu_);
  num_ = 0;
  for (int age = Times::kMost - 1; age >= 0; --age) {
    if (times.of_age_[age] >= 0) {
      times_[num_++] = times.of_age_[age];
    }
  }
  now_ = times.latest_;
}

// Forgets a time if those around it are less than a sixty-fourth of their age
// apart. Fewer than a hundred are left for each power of two.
void TableClock::ForgetSome() {
  const int32_t latest = times_[num_ - 1];
  int kept = num_ - 1;
  for (int i = num_ - 2; i > 0; --i) {
    if (times_[kept] - times_[i - 1] > (latest - times_[i - 1]) / 64) {
      times_[--kept] = times_[i];
    }
  }
  times_[--kept] = times_[0];
  std::copy(times_.begin() + kept, times_.begin() + num_, times_.begin());
  num_ -= kept;
}

int32_t TableClock::UnusedBefore(int64_t steps) const {
  if (steps == 0) {
    return 0;
  }
  const MutexLock lock(mu_);
  for (int i = num_ - 1; i >= 0; --i) {
    if (now_ - int64_t{times_[i]} > steps) {
      return times_[i];
    }
  }
  return 0;
}

}  // namespace tf_syncrep
