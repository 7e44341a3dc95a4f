// DynamicTable: which row of a part of a table has which key.

#ifndef TF_SYNCREP_CC_LIB_TABLE_DYNAMIC_TABLE_H_
#define TF_SYNCREP_CC_LIB_TABLE_DYNAMIC_TABLE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "tf_syncrep/cc/lib/array.h"
#include "tf_syncrep/cc/lib/mutex.h"
#include "tf_syncrep/cc/lib/sharder.h"
#include "tf_syncrep/cc/lib/table/admission_sketch.h"
#include "tf_syncrep/cc/lib/table/key_segment.h"
#include "tf_syncrep/cc/lib/table/table_columns.h"

namespace tf_syncrep {

// A key gets a row when it was seen often enough and a row is free, and loses
// it in an eviction. The row then rests, until whoever holds its number from
// before cannot write to it any more, and is free again. What is in the columns
// is all that there is to know: the rest is made of them by Build().
//
// Keys are spread by their hashes over stripes with a lock each, and in a
// stripe over segments, which grow one at a time: nobody waits for longer than
// it takes to move some 30,000 row numbers.
//
// All functions but Build() may run at the same time. A row's key and use
// change under the lock of its key's stripe and the row's lock of RowLocks, so
// that a snapshot has either of before or of after; the use alone may change
// under the former.
class DynamicTable {
 public:
  struct Options {
    int64_t first_row;  // of the part's rows, which is the table's first
    int64_t capacity;
    int min_count;  // how often a key is seen before it gets a row
  };

  // What Lookup() says of a key in the place of its row.
  static constexpr int32_t kNoRow = -1;
  static constexpr int32_t kAdmitted = -2;  // it has none, and may get one

  enum class BuildStatus : uint8_t {
    kOk,
    kOutOfMemory,
    kBadUse,     // a use that none of the states of a row has
    kSecondRow,  // two rows with the same key
  };

  enum class Order : uint8_t { kNone, kLeastRecent, kLeastFrequent };

  // Which rows an eviction takes.
  struct Eviction {
    int32_t used_before = 0;  // those used last before this
    // and, unless this is kNone, those that come before a place in the order;
    // and so many of those that are at it.
    Order order = Order::kNone;
    uint64_t up_to = 0;
    int64_t num_last = 0;
  };

  struct Counts {
    int64_t in_use;
    int64_t without_row;
    int64_t admitted;
    int64_t evicted;
    int64_t refused;
    int64_t dropped;
    int64_t bytes;
  };

  explicit DynamicTable(const Options& options);

  const Options& options() const { return options_; }
  bool has_row(int64_t row) const {
    return row >= options_.first_row &&
           row < options_.first_row + options_.capacity;
  }

  // Forgets all but the counts of what happened, and reads the columns.
  // Nobody may use the table meanwhile. Unless it is kOk, `bad_row` is the row
  // that is to blame, and the table is empty.
  BuildStatus Build(const TableColumns& columns, int64_t* bad_row);

  // The highest last use that Build() saw.
  int32_t last_use() const { return last_use_; }

  // Sets rows[i] to the row of keys[i], or to kNoRow.
  void Find(const TableColumns& columns, const int64_t* keys, int64_t size,
            int32_t* rows, Sharder& sharder, bool* has_memory);

  // The same for training: keys that have a row are used now, at `clock`;
  // others are counted, and are kAdmitted if they were seen often enough.
  void FindAndUse(const TableColumns& columns, int32_t clock,
                  const int64_t* keys, int64_t size, int32_t* rows,
                  Sharder& sharder, bool* has_memory);

  // Takes up to `size` free rows, for Add() or GiveBack(). Returns how many, or
  // -1 when there is no memory.
  int64_t TakeFree(int64_t size, int32_t* rows);
  void GiveBack(const int32_t* rows, int64_t size);

  // Gives keys that have none rows, whose vectors are written: free_rows[i],
  // taken by TakeFree(), to keys[i], with a use. Sets rows[i] to it. Where a
  // key has got another row meanwhile, rows[i] is that, which is used, and
  // free_rows[i] is given back. Sets `has_memory` to false where there is none:
  // rows[i] is then kNoRow, and free_rows[i] is given back, for keys without a
  // row. `vectors` is where the part's vectors begin.
  void Add(const TableColumns& columns, const void* vectors,
           const int64_t* keys, int64_t size, RowUse use,
           const int32_t* free_rows, int32_t* rows, Sharder& sharder,
           bool* has_memory);

  // Counts keys that training found without a row, and those of them that a
  // full table refused.
  void CountWithoutRow(int64_t num, int64_t num_refused);
  void CountDropped(int64_t num);

  // Rows that were evicted before the call and rest since.
  Array<int32_t> TakeResting(bool* has_memory);
  void PutBackResting(const int32_t* rows, int64_t size);
  // Rows from TakeResting() that are like new from here on.
  void Free(const TableColumns& columns, const void* vectors,
            const int32_t* rows, int64_t size);

  // Rows from `begin` to `end` that were used last at a time in [from, to], and
  // before `until`, are as if they were used last at `until`.
  void Settle(const TableColumns& columns, int64_t begin, int64_t end,
              int32_t from, int32_t to, int32_t until);

  // Which rows to evict at `clock`: those unused for longer than `unused_for`,
  // unless that is 0; and where more than 95% of the rows are in use after
  // that, the first ones in the order, until 90% are. Returns false when there
  // is no memory.
  [[nodiscard]] bool PlanEviction(const TableColumns& columns, int32_t clock,
                                  int64_t unused_for, Order order,
                                  Eviction* eviction) const;

  // Collects up to `size` rows, from row `from` on, that an eviction takes, and
  // returns how many. `from` becomes where to go on, or the end of the table.
  int64_t Collect(const TableColumns& columns, Eviction* eviction,
                  int64_t* from, int64_t size, int32_t* rows) const;
  int64_t end_row() const { return options_.first_row + options_.capacity; }

  // Evicts rows that were collected, unless they have been used meanwhile:
  // removes their keys; they rest. Returns how many.
  int64_t Evict(const TableColumns& columns, const void* vectors,
                const Eviction& eviction, const int32_t* rows, int64_t size);

  // Sets a row's use, if it still has this key; whether it has.
  bool SetUse(const TableColumns& columns, int64_t key, int32_t row,
              RowUse use);

  Counts counts() const;

  // Rows that were ever used are before this one.
  int64_t first_unused_row() const;

 private:
  struct alignas(64) Stripe {
    Stripe(int number, int64_t num_segments, int64_t num_counters)
        : sketch(num_counters) {
      segments.reserve(num_segments);
      for (int64_t i = 0; i < num_segments; ++i) {
        segments.emplace_back(i * kNumKeyStripes + number);
      }
    }

    mutable Mutex mu;
    std::vector<KeySegment> segments TF_SYNCREP_GUARDED_BY(mu);
    AdmissionSketch sketch TF_SYNCREP_GUARDED_BY(mu);
  };

  bool ReserveLists(int64_t num_rows) TF_SYNCREP_REQUIRES(rows_mu_);
  // A key of a call, and where it is there.
  struct Asked {
    uint64_t hash;
    int64_t key;
    int64_t place;
  };

  BuildStatus BuildRow(const TableColumns& columns, int64_t row);

  template <bool kUses, typename Visit>
  bool ForEachByStripe(const TableColumns& columns, const int64_t* keys,
                       int64_t size, Sharder& sharder, const Visit& visit);
  template <bool kUses, typename Visit>
  void VisitKeys(const TableColumns& columns, Stripe& stripe,
                 const Asked* begin, const Asked* end, const Visit& visit) const
      TF_SYNCREP_REQUIRES(stripe.mu);

  Stripe& StripeOf(uint64_t hash) const { return *stripes_[KeyStripe(hash)]; }
  KeySegment& SegmentOf(Stripe& stripe, uint64_t hash) const {
    return stripe.segments[KeySegmentOf(hash, num_segments_)];
  }

  static bool IsTaken(const Eviction& eviction, RowUse use);

  const Options options_;
  int64_t num_segments_ = 1;  // of a stripe
  std::vector<std::unique_ptr<Stripe>> stripes_;
  int32_t last_use_ = 0;
  std::atomic<uint32_t> next_stripe_{0};  // at which a call begins

  mutable Mutex rows_mu_;
  int64_t next_fresh_ TF_SYNCREP_GUARDED_BY(rows_mu_);
  // Both lists have room for all rows before next_fresh_.
  std::vector<int32_t> free_ TF_SYNCREP_GUARDED_BY(rows_mu_);
  std::vector<int32_t> resting_ TF_SYNCREP_GUARDED_BY(rows_mu_);

  std::atomic<int64_t> in_use_{0};
  std::atomic<int64_t> without_row_{0};
  std::atomic<int64_t> admitted_{0};
  std::atomic<int64_t> evicted_{0};
  std::atomic<int64_t> refused_{0};
  std::atomic<int64_t> dropped_{0};
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_TABLE_DYNAMIC_TABLE_H_
