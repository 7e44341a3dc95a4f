// TableClock: how long rows of tables that grow have not been used.

#ifndef TF_SYNCREP_CC_LIB_TABLE_TABLE_CLOCK_H_
#define TF_SYNCREP_CC_LIB_TABLE_TABLE_CLOCK_H_

#include <array>
#include <atomic>
#include <cstdint>

#include "tf_syncrep/cc/lib/mutex.h"

namespace tf_syncrep {

// Numbers of updates: their times. A row's last use is the time that the clock
// had then, and the clock is set between updates, every so many. So a row whose
// last use is one such time may have been used until right before the next one,
// and the clock remembers these, about: of old ones, which are alike, few.
// Where it has forgotten one, a row seems to be younger than it is, by up to a
// thirtieth.
class TableClock {
 public:
  // A choice of times, no later than the latest.
  class Times {
   public:
    explicit Times(int32_t latest);
    void Add(int32_t time);

   private:
    friend class TableClock;

    // Sixty-four for each power of two.
    static constexpr int kMost = 26 * 64;
    static int AgeClass(uint32_t age);

    const int32_t latest_;
    std::array<int32_t, kMost> of_age_;  // -1 where there is none
  };

  int32_t now() const { return now_; }

  void Set(int32_t now);

  // Sets it to the latest of those times, all of which it has had.
  void Set(const Times& times);

  // Rows whose last use is before this have not been used for more than
  // `steps`. 0, for no rows, if `steps` is.
  int32_t UnusedBefore(int64_t steps) const;

 private:
  void ForgetSome() TF_SYNCREP_REQUIRES(mu_);

  std::atomic<int32_t> now_{0};
  mutable Mutex mu_;
  // Ascending; the last one is now.
  std::array<int32_t, 4096> times_ TF_SYNCREP_GUARDED_BY(mu_) = {};
  int num_ TF_SYNCREP_GUARDED_BY(mu_) = 1;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_TABLE_TABLE_CLOCK_H_
