// DynamicTable knows which row of a part of a table has which key.

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
// it in an eviction. The row then rests until nobody who still holds its number
// can write to it, and is free again. The columns contain the whole state:
// Build() makes everything else from them.
//
// Keys are spread by their hashes over stripes, each of which has a lock, and
// within a stripe over segments, which grow one at a time. So nobody waits for
// longer than it takes to move some 30,000 row numbers.
//
// All functions but Build() may run at the same time. A row's key and use
// change under the lock of its key's stripe and the row's lock of RowLocks, so
// that a snapshot has both from before or both from after. A change of the use
// alone needs only the lock of the stripe; one of the last use alone needs
// none.
class DynamicTable {
 public:
  struct Options {
    int64_t first_row;  // which of the part's rows is the table's first
    int64_t capacity;
    int min_count;  // how often a key is seen before it gets a row
  };

  // Find() and FindAndUse() return these in the place of a row.
  static constexpr int32_t kNoRow = -1;
  static constexpr int32_t kAdmitted = -2;  // the key may get a row

  enum class BuildStatus : uint8_t {
    kOk,
    kOutOfMemory,
    kBadUse,     // no state of a row has such a use
    kSecondRow,  // two rows have the same key
  };

  enum class Order : uint8_t { kNone, kLeastRecent, kLeastFrequent };

  // The rows that an eviction takes: those that were last used before
  // `used_before` and, unless `order` is kNone, those whose rank in the order
  // is below `up_to`, and `num_last` of those whose rank is `up_to`.
  struct Eviction {
    int32_t used_before = 0;
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

  // Forgets everything but the counts of events, and reads the columns. Nobody
  // may use the table meanwhile. Unless the status is kOk, `bad_row` is the row
  // with the error, and the table is empty.
  BuildStatus Build(const TableColumns& columns, Sharder& sharder,
                    int64_t* bad_row);

  // Sets rows[i] to the row of keys[i], or to kNoRow.
  void Find(const TableColumns& columns, const int64_t* keys, int64_t size,
            int32_t* rows, Sharder& sharder, bool* has_memory);

  // Does the same for training: keys that have a row are used now, at `clock`;
  // others are counted, and get kAdmitted if they were seen often enough.
  void FindAndUse(const TableColumns& columns, int32_t clock,
                  const int64_t* keys, int64_t size, int32_t* rows,
                  Sharder& sharder, bool* has_memory);

  // Returns how many of `size` rows, if they were taken now, would be ones that
  // were never used.
  int64_t NumFresh(int64_t size) const;

  // The number of the last call of Build(). It does not know of rows that were
  // taken before, and may have made them free or given them keys.
  int64_t build() const;

  // Takes up to `size` free rows, for Add() or GiveBack(). Returns how many it
  // has taken, or -1 if there is no memory.
  int64_t TakeFree(int64_t size, int32_t* rows);
  // Gives back rows that were taken after the build of this number, if it still
  // is the last one.
  void GiveBack(const int32_t* rows, int64_t size, int64_t build);

  // Gives rows, whose vectors are written already, to keys that have none:
  // keys[i] gets free_rows[i], which TakeFree() has returned, with `use`, and
  // rows[i] is set to it. If a key has got another row meanwhile, that row is
  // used and rows[i] is set to it, and free_rows[i] is given back. If there is
  // no memory, `has_memory` is set to false; for keys without a row rows[i] is
  // then kNoRow, and free_rows[i] is given back. The part's vectors begin at
  // `vectors`. Keys that were seen in training count as admitted.
  void Add(const TableColumns& columns, const void* vectors,
           const int64_t* keys, int64_t size, RowUse use,
           const int32_t* free_rows, int32_t* rows, Sharder& sharder,
           bool* has_memory, bool were_seen = true);

  // Counts keys that training found without a row, and how many of these a full
  // table refused.
  void CountWithoutRow(int64_t num, int64_t num_refused);

  // Finds the rows that a gradient may be written to, of the keys from `begin`
  // to `end`, for which a lookup has found these rows: sets kept[i] to rows[i]
  // if that still has keys[i], or else to kNoRow. The latter count as dropped,
  // but for keys that had no row. Returns how many are kept, or -1 if
  // rows[*bad] is no row of this table.
  int64_t FindKept(const TableColumns& columns, const int64_t* keys,
                   const int32_t* rows, int64_t begin, int64_t end,
                   int32_t* kept, int64_t* bad);

  // Takes the rows from keys, for which Find() has found these, unless a key
  // has another row by now. They rest until the second TakeResting(), since a
  // maintenance may be about to begin. Returns how many it has taken.
  int64_t Release(const TableColumns& columns, const void* vectors,
                  const int64_t* keys, const int32_t* rows, int64_t size);

  // Returns the rows that were evicted before the call, or released before the
  // last one, and still rest. They are put back as GiveBack() does it.
  Array<int32_t> TakeResting(bool* has_memory);
  void PutBackResting(const int32_t* rows, int64_t size, int64_t build);
  // Makes rows from TakeResting() free, so that they can get keys again.
  void Free(const TableColumns& columns, const void* vectors,
            const int32_t* rows, int64_t size);

  // Sets the last use to `until` for those rows from `begin` to `end` whose
  // last use is in [from, to] and before `until`, or later than `until` + 1,
  // which is the time of keys that are used now.
  void Settle(const TableColumns& columns, int64_t begin, int64_t end,
              int32_t from, int32_t to, int32_t until);

  // Adds `by` to the last uses that are before `before`.
  void MoveLastUses(const TableColumns& columns, int32_t before, int32_t by);

  // Chooses the rows to evict at `clock`: those unused for longer than
  // `unused_for`, unless that is 0. If more than 95% of the rows are in use
  // after that, it also chooses the first ones in the order, until 90% are.
  // Returns false if there is no memory.
  [[nodiscard]] bool PlanEviction(const TableColumns& columns, int32_t clock,
                                  int64_t unused_for, Order order,
                                  Eviction* eviction) const;

  // Collects up to `size` rows, from row `from` on, that an eviction takes, and
  // returns how many. It sets `from` to the row at which to go on, or to the
  // end of the table.
  int64_t Collect(const TableColumns& columns, Eviction* eviction,
                  int64_t* from, int64_t size, int32_t* rows) const;
  int64_t end_row() const { return options_.first_row + options_.capacity; }

  // Evicts rows that were collected, unless they have been used meanwhile:
  // their keys are removed, and the rows rest. Returns how many it has evicted.
  int64_t Evict(const TableColumns& columns, const void* vectors,
                const Eviction& eviction, const int32_t* rows, int64_t size);

  // Reads the key and use of a row, both of one moment. Returns false if the
  // row is not in use.
  bool Read(const TableColumns& columns, int64_t row, int64_t* key,
            RowUse* use) const;

  // Sets a row's use if the row still has this key. Returns whether it has.
  bool SetUse(const TableColumns& columns, int64_t key, int32_t row,
              RowUse use);

  Counts counts() const;

  // Returns the highest last use of a row in use, or 0.
  int32_t MostRecentUse(const TableColumns& columns) const;

  // Returns the end of the rows that were ever used.
  int64_t first_unused_row() const;

 private:
  struct alignas(64) Stripe {
    Stripe(int64_t num_counters, int min_count)
        : sketch(num_counters, min_count) {}

    mutable Mutex mu;
    AdmissionSketch sketch TF_SYNCREP_GUARDED_BY(mu);
  };

  bool ReserveLists(int64_t num_rows) TF_SYNCREP_REQUIRES(rows_mu_);
  void PushFree(const int32_t* rows, int64_t size)
      TF_SYNCREP_REQUIRES(rows_mu_);
  // A key of a call, and its place in the call.
  struct Asked {
    uint64_t hash;
    int64_t key;
    int64_t place;
  };

  // Puts the rows before next_fresh_ that are in use, which are so many, into
  // the empty stripes.
  BuildStatus BuildStripes(const TableColumns& columns, int64_t num_in_use,
                           Sharder& sharder, int64_t* bad_row)
      TF_SYNCREP_REQUIRES(rows_mu_);

  template <bool kUses, typename Visit>
  bool ForEachByStripe(const TableColumns& columns, const int64_t* keys,
                       int64_t size, Sharder& sharder, const Visit& visit);
  template <bool kUses, typename Visit>
  void VisitKeys(const TableColumns& columns, const Asked* asked, int64_t size,
                 const Visit& visit) TF_SYNCREP_UNCHECKED_LOCKS;

  int64_t num_stripes() const { return static_cast<int64_t>(stripes_.size()); }
  Stripe& StripeOf(uint64_t hash) const {
    return *stripes_[KeyStripe(hash, stripe_bits_)];
  }
  int64_t NumberOfSegment(uint64_t hash) const {
    return KeyStripe(hash, stripe_bits_) * num_segments_ +
           KeySegmentOf(hash, num_segments_);
  }
  KeySegment& SegmentOf(Stripe& stripe, uint64_t hash)
      TF_SYNCREP_REQUIRES(stripe.mu) {
    static_cast<void>(stripe);
    return segments_[NumberOfSegment(hash)];
  }

  // Whether the row has this key, whose stripe and hash these are. What the
  // columns say of a row that has another key may be about to change.
  bool HasKey(const TableColumns& columns, Stripe& stripe, uint64_t hash,
              int64_t key, int64_t row) const TF_SYNCREP_REQUIRES(stripe.mu) {
    static_cast<void>(stripe);
    return segments_[NumberOfSegment(hash)].Find(hash, key, columns.keys()) ==
           row;
  }

  // Takes the row from its key, if it has one with this hash. Returns whether
  // it did; the row is in no list then.
  bool TakeAway(const TableColumns& columns, const void* vectors,
                Stripe& stripe, uint64_t hash, int32_t row)
      TF_SYNCREP_REQUIRES(stripe.mu);

  static bool IsTaken(const Eviction& eviction, RowUse use);

  const Options options_;
  const int stripe_bits_;
  const int64_t num_segments_;  // in each stripe
  std::vector<std::unique_ptr<Stripe>> stripes_;
  // One stripe after the other; a stripe's mutex guards its segments.
  std::vector<KeySegment> segments_;
  std::atomic<uint32_t> next_stripe_{0};  // the next call begins here

  mutable Mutex rows_mu_;
  int64_t build_ TF_SYNCREP_GUARDED_BY(rows_mu_) = 0;
  int64_t next_fresh_ TF_SYNCREP_GUARDED_BY(rows_mu_);
  // The lists have room for all rows before next_fresh_.
  std::vector<int32_t> free_ TF_SYNCREP_GUARDED_BY(rows_mu_);
  std::vector<int32_t> resting_ TF_SYNCREP_GUARDED_BY(rows_mu_);
  std::vector<int32_t> released_ TF_SYNCREP_GUARDED_BY(rows_mu_);

  std::atomic<int64_t> in_use_{0};
  std::atomic<int64_t> without_row_{0};
  std::atomic<int64_t> admitted_{0};
  std::atomic<int64_t> evicted_{0};
  std::atomic<int64_t> refused_{0};
  std::atomic<int64_t> dropped_{0};
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_TABLE_DYNAMIC_TABLE_H_
