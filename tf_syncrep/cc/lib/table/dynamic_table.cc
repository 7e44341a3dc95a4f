#include "tf_syncrep/cc/lib/table/dynamic_table.h"

#include <algorithm>
#include <limits>
#include <new>
#include <numeric>

#include "tf_syncrep/cc/lib/held_mutexes.h"
#include "tf_syncrep/cc/lib/mutex.h"
#include "tf_syncrep/cc/lib/prefetch.h"
#include "tf_syncrep/cc/lib/read_once.h"
#include "tf_syncrep/cc/lib/rows/row_locks.h"

namespace tf_syncrep {
namespace {

// A small table has a stripe for so many rows. If it had more stripes, hardly
// two keys of a call would have the same one, and each would wait for memory by
// itself.
constexpr int64_t kStripeRows = 4096;
// A segment of a full table has at most so many rows. They can be moved in
// about a millisecond.
constexpr int64_t kSegmentRows = 32768;
constexpr int64_t kMostSegments = int64_t{1} << 16;
// A sketch has at most so many counters for each row.
constexpr int64_t kCountersOfRow = 2;
constexpr int64_t kFewestCounters = 1 << 16;

// So many keys are sorted by their stripes at a time. They are few enough to
// stay in a cache, and enough for a lock to be taken for more than a hundred of
// them. It is also the number of keys that is worth another thread.
constexpr int64_t kSortedAtOnce = 8192;
// The memory of so many keys is prefetched at a time, under the locks of at
// most so many stripes.
constexpr int64_t kKeysAtOnce = 64;
constexpr int kStripesAtOnce = 16;
constexpr int64_t kRowsAhead = 16;

int NumStripeBits(int64_t capacity) {
  int bits = 0;
  while (bits < kMostKeyStripeBits && kStripeRows << (bits + 1) <= capacity) {
    ++bits;
  }
  return bits;
}

int64_t NumSegments(int64_t capacity) {
  int64_t num = 1;
  while (num < kMostSegments &&
         (num * kSegmentRows) << NumStripeBits(capacity) < capacity) {
    num *= 2;
  }
  return num;
}

RowUse UsedOnceMore(RowUse use, int32_t clock) {
  return {clock, use.count < std::numeric_limits<int32_t>::max() ? use.count + 1
                                                                 : use.count};
}

uint64_t Rank(DynamicTable::Order order, RowUse use) {
  const auto last_use = static_cast<uint32_t>(use.last_use);
  const auto count = static_cast<uint32_t>(use.count);
  return order == DynamicTable::Order::kLeastRecent
             ? uint64_t{last_use} << 32 | count
             : uint64_t{count} << 32 | last_use;
}

bool Reserve(std::vector<int32_t>* rows, int64_t size) {
  try {
    // Memory costs nothing before it is touched.
    if (static_cast<size_t>(size) > rows->capacity()) {
      rows->reserve(static_cast<size_t>(size + size / 2));
    }
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

}  // namespace

DynamicTable::DynamicTable(const Options& options)
    : options_(options),
      stripe_bits_(NumStripeBits(options.capacity)),
      num_segments_(NumSegments(options.capacity)),
      next_fresh_(options.first_row) {
  const int64_t num_stripes = int64_t{1} << stripe_bits_;
  const int64_t counters =
      std::max(options.capacity * kCountersOfRow / 2, kFewestCounters) /
      num_stripes;
  segments_.reserve(num_stripes * num_segments_);
  for (int64_t i = 0; i < num_stripes; ++i) {
    stripes_.push_back(std::make_unique<Stripe>(counters, options.min_count));
    for (int64_t k = 0; k < num_segments_; ++k) {
      segments_.emplace_back(k * num_stripes + i);
    }
  }
}

DynamicTable::BuildStatus DynamicTable::Build(const TableColumns& columns,
                                              Sharder& sharder,
                                              int64_t* bad_row) {
  const MutexLock lock(rows_mu_);
  ++build_;
  const auto clear = [&]() TF_SYNCREP_REQUIRES(rows_mu_) {
    for (int64_t i = 0; i < num_stripes(); ++i) {
      const MutexLock stripe_lock(stripes_[i]->mu);
      for (int64_t k = 0; k < num_segments_; ++k) {
        segments_[i * num_segments_ + k].Clear();
      }
    }
    next_fresh_ = options_.first_row;
    free_.clear();
    resting_.clear();
    released_.clear();
    in_use_ = 0;
  };
  clear();
  const auto fail = [&](BuildStatus status, int64_t row)
                        TF_SYNCREP_REQUIRES(rows_mu_) {
                          clear();
                          *bad_row = row;
                          return status;
                        };
  int64_t num_in_use = 0;
  for (int64_t row = options_.first_row; row < end_row(); ++row) {
    const RowUse use = columns.use(row);
    if (use.last_use == 0 && use.count == 0) {
      continue;
    }
    if (!ReserveLists(row + 1 - options_.first_row)) {
      return fail(BuildStatus::kOutOfMemory, row);
    }
    if (use.rests()) {
      resting_.push_back(static_cast<int32_t>(row));
    } else if (use.count < 0 || use.last_use < 0 || use.count == 0) {
      return fail(BuildStatus::kBadUse, row);
    } else {
      ++num_in_use;
    }
    for (; next_fresh_ < row; ++next_fresh_) {
      free_.push_back(static_cast<int32_t>(next_fresh_));
    }
    next_fresh_ = row + 1;
  }
  const BuildStatus status =
      BuildStripes(columns, num_in_use, sharder, bad_row);
  if (status != BuildStatus::kOk) {
    return fail(status, *bad_row);
  }
  in_use_ = num_in_use;
  return BuildStatus::kOk;
}

DynamicTable::BuildStatus DynamicTable::BuildStripes(
    const TableColumns& columns, int64_t num_in_use, Sharder& sharder,
    int64_t* bad_row) {
  *bad_row = options_.first_row;
  std::atomic<bool> has_room{true};
  std::atomic<int64_t> second_row{-1};
  // Hashes spread rows evenly, so hardly any segment grows afterwards.
  const auto num_segments = static_cast<int64_t>(segments_.size());
  sharder.RunParts(num_stripes(), 1, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const MutexLock lock(stripes_[i]->mu);
      for (int64_t k = 0; k < num_segments_; ++k) {
        if (!segments_[i * num_segments_ + k].Reserve(num_in_use / num_segments,
                                                      columns.keys())) {
          has_room = false;
        }
      }
    }
  });
  const bool has_memory = ForEachByStripe</*kUses=*/false>(
      columns, columns.keys() + options_.first_row,
      next_fresh_ - options_.first_row, sharder,
      [&](Stripe&, KeySegment& segment, const Asked& asked) {
        const int64_t row = options_.first_row + asked.place;
        if (!columns.use(row).is_in_use()) {
          return;
        }
        const int64_t found =
            segment.Find(asked.hash, asked.key, columns.keys());
        if (found >= 0) {
          second_row = std::max(row, found);
        } else if (!segment.Insert(asked.hash, static_cast<int32_t>(row),
                                   columns.keys())) {
          has_room = false;
        }
      });
  if (!has_memory || !has_room) {
    return BuildStatus::kOutOfMemory;
  }
  if (second_row >= 0) {
    *bad_row = second_row;
    return BuildStatus::kSecondRow;
  }
  return BuildStatus::kOk;
}

// Calls `visit(stripe, segment, asked)` for each key, under its stripe's lock,
// after its memory was prefetched. Returns false if there is no memory for the
// arrays of this function; then perhaps not all keys were visited.
template <bool kUses, typename Visit>
bool DynamicTable::ForEachByStripe(const TableColumns& columns,
                                   const int64_t* keys, int64_t size,
                                   Sharder& sharder, const Visit& visit) {
  std::atomic<bool> has_memory{true};
  sharder.RunParts(size, kSortedAtOnce, 1, [&](int64_t from, int64_t to) {
    const int64_t at_once = std::min(kSortedAtOnce, to - from);
    Array<Asked> asked;
    Array<int64_t> copies;
    if (!asked.Allocate(at_once) || !copies.Allocate(at_once)) {
      has_memory = false;
      return;
    }
    for (int64_t begin = from; begin < to; begin += at_once) {
      const int64_t num = std::min(at_once, to - begin);
      for (const auto& stripe : stripes_) {
        Prefetch<PrefetchFor::kWriting>(stripe.get(), 1);
      }
      const bool uses_few = static_cast<size_t>(num) < segments_.size();
      for (size_t i = 0; !uses_few && i < segments_.size(); ++i) {
        Prefetch<PrefetchFor::kReading>(&segments_[i], 1);
      }
      // Keys are read once, since others may change them meanwhile.
      int32_t ends[(1 << kMostKeyStripeBits) + 1] = {};
      for (int64_t i = 0; i < num; ++i) {
        copies[i] = ReadOnce(&keys[begin + i]);
        const uint64_t hash = HashKey(copies[i]);
        ++ends[KeyStripe(hash, stripe_bits_)];
        if (uses_few) {
          Prefetch<PrefetchFor::kReading>(&segments_[NumberOfSegment(hash)], 1);
        }
      }
      std::partial_sum(ends, ends + num_stripes(), ends);
      for (int64_t i = num - 1; i >= 0; --i) {
        const uint64_t hash = HashKey(copies[i]);
        asked[--ends[KeyStripe(hash, stripe_bits_)]] = {hash, copies[i],
                                                        begin + i};
      }
      // Now each stripe's keys are in the order of the call, and ends[] has the
      // place of its first one. Calls begin at different stripes, since calls
      // that began at the same one would wait for each other at every stripe.
      ends[num_stripes()] = static_cast<int32_t>(num);
      const uint32_t start = next_stripe_.fetch_add(1) * 23;
      for (int64_t done = 0; done < num_stripes();) {
        const int64_t first = (start + done) % num_stripes();
        const int64_t end =
            std::min(num_stripes(), first + num_stripes() - done);
        // Stripes with few keys are visited together, if nobody holds them.
        HeldMutexes<kStripesAtOnce> held;
        int64_t last = first;
        while (last < end && ends[last] - ends[first] < kKeysAtOnce &&
               (ends[last] == ends[last + 1] || held.Add(stripes_[last]->mu))) {
          ++last;
        }
        for (int64_t k = ends[first]; k < ends[last]; k += kKeysAtOnce) {
          VisitKeys<kUses>(columns, asked.data() + k,
                           std::min(kKeysAtOnce, ends[last] - k), visit);
        }
        done += last - first;
      }
    }
  });
  return has_memory;
}

// Does the same for up to kKeysAtOnce keys whose stripes are locked.
template <bool kUses, typename Visit>
void DynamicTable::VisitKeys(const TableColumns& columns, const Asked* asked,
                             int64_t size, const Visit& visit) {
  KeySegment* segments[kKeysAtOnce];
  for (int64_t i = 0; i < size; ++i) {
    segments[i] = &segments_[NumberOfSegment(asked[i].hash)];
    segments[i]->PrefetchBucket(asked[i].hash);
  }
  for (int64_t i = 0; i < size; ++i) {
    const int32_t row = segments[i]->Guess(asked[i].hash);
    if (row >= 0) {
      Prefetch<PrefetchFor::kReading>(columns.keys() + row, 8);
      if constexpr (kUses) {
        Prefetch<PrefetchFor::kWriting>(columns.address_of_use(row), 8);
      }
    }
  }
  for (int64_t i = 0; i < size; ++i) {
    visit(StripeOf(asked[i].hash), *segments[i], asked[i]);
  }
}

void DynamicTable::Find(const TableColumns& columns, const int64_t* keys,
                        int64_t size, int32_t* rows, Sharder& sharder,
                        bool* has_memory) {
  *has_memory = ForEachByStripe</*kUses=*/false>(
      columns, keys, size, sharder,
      [&](Stripe&, const KeySegment& segment, const Asked& asked) {
        rows[asked.place] = segment.Find(asked.hash, asked.key, columns.keys());
      });
}

void DynamicTable::FindAndUse(const TableColumns& columns, int32_t clock,
                              const int64_t* keys, int64_t size, int32_t* rows,
                              Sharder& sharder, bool* has_memory) {
  std::atomic<bool> has_counters{true};
  *has_memory = ForEachByStripe</*kUses=*/true>(
      columns, keys, size, sharder,
      [&](Stripe& stripe, const KeySegment& segment,
          const Asked& asked) TF_SYNCREP_REQUIRES(stripe.mu) {
        int32_t& row = rows[asked.place];
        row = segment.Find(asked.hash, asked.key, columns.keys());
        if (row >= 0) {
          columns.set_use(row, UsedOnceMore(columns.use(row), clock));
          return;
        }
        int count = 1;
        if (options_.min_count > 1 && !stripe.sketch.Add(asked.hash, &count)) {
          has_counters = false;
        }
        row = count >= options_.min_count ? kAdmitted : kNoRow;
      });
  *has_memory = *has_memory && has_counters;
}

bool DynamicTable::ReserveLists(int64_t num_rows) {
  return Reserve(&free_, num_rows) && Reserve(&resting_, num_rows) &&
         Reserve(&released_, num_rows);
}

int64_t DynamicTable::NumFresh(int64_t size) const {
  const MutexLock lock(rows_mu_);
  const auto num_free = static_cast<int64_t>(free_.size());
  return std::clamp<int64_t>(size - num_free, 0, end_row() - next_fresh_);
}

int64_t DynamicTable::TakeFree(int64_t size, int32_t* rows) {
  const MutexLock lock(rows_mu_);
  const int64_t from_list = std::min(size, static_cast<int64_t>(free_.size()));
  const int64_t fresh = std::min(size - from_list, end_row() - next_fresh_);
  if (!ReserveLists(next_fresh_ + fresh - options_.first_row)) {
    return -1;
  }
  for (int64_t i = 0; i < from_list; ++i) {
    rows[i] = free_.back();
    free_.pop_back();
  }
  for (int64_t i = 0; i < fresh; ++i) {
    rows[from_list + i] = static_cast<int32_t>(next_fresh_++);
  }
  return from_list + fresh;
}

int64_t DynamicTable::build() const {
  const MutexLock lock(rows_mu_);
  return build_;
}

void DynamicTable::GiveBack(const int32_t* rows, int64_t size, int64_t build) {
  const MutexLock lock(rows_mu_);
  if (build == build_) {
    PushFree(rows, size);
  }
}

void DynamicTable::PushFree(const int32_t* rows, int64_t size) {
  // TakeFree() takes from the end, so that it returns the first row first.
  for (int64_t i = size - 1; i >= 0; --i) {
    free_.push_back(rows[i]);
  }
}

void DynamicTable::Add(const TableColumns& columns, const void* vectors,
                       const int64_t* keys, int64_t size, RowUse use,
                       const int32_t* free_rows, int32_t* rows,
                       Sharder& sharder, bool* has_memory, bool were_seen) {
  std::fill(rows, rows + size, kNoRow);
  std::atomic<bool> has_room{true};
  *has_memory = ForEachByStripe</*kUses=*/true>(
      columns, keys, size, sharder,
      [&](Stripe&, KeySegment& segment, const Asked& asked) {
        int32_t& row = rows[asked.place];
        row = segment.Find(asked.hash, asked.key, columns.keys());
        if (row >= 0) {
          columns.set_use(row, UsedOnceMore(columns.use(row), use.last_use));
          return;
        }
        const int32_t free_row = free_rows[asked.place];
        if (!segment.Insert(asked.hash, free_row, columns.keys())) {
          has_room = false;
          return;
        }
        row = free_row;
        const MutexLock row_lock(RowLocks::Global().Of(vectors, row));
        columns.set_key(row, asked.key);
        columns.set_use(row, use);
      });
  *has_memory = *has_memory && has_room;
  int64_t num_added = 0;
  for (int64_t i = size - 1; i >= 0; --i) {
    if (rows[i] == free_rows[i]) {
      ++num_added;
    } else {
      const MutexLock lock(rows_mu_);
      PushFree(&free_rows[i], 1);
    }
  }
  in_use_ += num_added;
  admitted_ += were_seen ? num_added : 0;
}

void DynamicTable::CountWithoutRow(int64_t num, int64_t num_refused) {
  without_row_ += num;
  refused_ += num_refused;
}

int64_t DynamicTable::FindKept(const TableColumns& columns, const int64_t* keys,
                               const int32_t* rows, int64_t begin, int64_t end,
                               int32_t* kept, int64_t* bad) {
  int64_t num_kept = 0;
  int64_t num_dropped = 0;
  for (int64_t i = begin; i < end; ++i) {
    if (i + kRowsAhead < end) {
      // Any address will do, also that of no row.
      const int32_t ahead = ReadOnce(&rows[i + kRowsAhead]);
      Prefetch<PrefetchFor::kReading>(columns.address_of_use(ahead), 8);
      Prefetch<PrefetchFor::kReading>(columns.keys() + ahead, 8);
    }
    // Both are read once, since others may change them meanwhile.
    const int32_t row = ReadOnce(&rows[i]);
    if (row != kNoRow && !has_row(row)) {
      *bad = i;
      return -1;
    }
    // A free row has key 0, and gets its key before its use: so the use is read
    // first.
    const bool is_kept = row != kNoRow && columns.use(row).is_in_use() &&
                         columns.key(row) == ReadOnce(&keys[i]);
    kept[i] = is_kept ? row : kNoRow;
    num_kept += is_kept;
    num_dropped += row != kNoRow && !is_kept;
  }
  dropped_ += num_dropped;
  return num_kept;
}

Array<int32_t> DynamicTable::TakeResting(bool* has_memory) {
  Array<int32_t> rows;
  const MutexLock lock(rows_mu_);
  *has_memory = rows.Allocate(static_cast<int64_t>(resting_.size()));
  if (*has_memory) {
    std::copy(resting_.begin(), resting_.end(), rows.begin());
    resting_.clear();
    resting_.swap(released_);
  }
  return rows;
}

void DynamicTable::PutBackResting(const int32_t* rows, int64_t size,
                                  int64_t build) {
  const MutexLock lock(rows_mu_);
  if (build == build_) {
    resting_.insert(resting_.end(), rows, rows + size);
  }
}

void DynamicTable::Free(const TableColumns& columns, const void* vectors,
                        const int32_t* rows, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    const MutexLock row_lock(RowLocks::Global().Of(vectors, rows[i]));
    columns.set_use(rows[i], {0, 0});
  }
  const MutexLock lock(rows_mu_);
  PushFree(rows, size);
}

bool DynamicTable::IsTaken(const Eviction& eviction, RowUse use) {
  return use.is_in_use() && (use.last_use < eviction.used_before ||
                             (eviction.order != Order::kNone &&
                              Rank(eviction.order, use) <= eviction.up_to));
}

// Both of these take no locks: a row that changes meanwhile is used now, or has
// another key, and needs no change.
void DynamicTable::Settle(const TableColumns& columns, int64_t begin,
                          int64_t end, int32_t from, int32_t to,
                          int32_t until) {
  for (int64_t row = begin; row < end; ++row) {
    const RowUse use = columns.use(row);
    if (use.is_in_use() &&
        ((use.last_use >= from && use.last_use <= to && use.last_use < until) ||
         use.last_use - 1 > until)) {
      columns.set_last_use(row, use, until);
    }
  }
}

void DynamicTable::MoveLastUses(const TableColumns& columns, int32_t before,
                                int32_t by) {
  const int64_t end = first_unused_row();
  for (int64_t row = options_.first_row; row < end; ++row) {
    const RowUse use = columns.use(row);
    if (use.is_in_use() && use.last_use < before) {
      columns.set_last_use(row, use, use.last_use + by);
    }
  }
}

bool DynamicTable::PlanEviction(const TableColumns& columns, int32_t clock,
                                int64_t unused_for, Order order,
                                Eviction* eviction) const {
  *eviction = {};
  if (unused_for > 0 && clock > unused_for) {
    eviction->used_before = static_cast<int32_t>(clock - unused_for);
  }
  if (order == Order::kNone || in_use_ * 20 <= options_.capacity * 19) {
    return true;
  }
  const int64_t end = first_unused_row();
  const auto for_each_left = [&](const auto& visit) {
    for (int64_t row = options_.first_row; row < end; ++row) {
      const RowUse use = columns.use(row);
      if (use.is_in_use() && use.last_use >= eviction->used_before) {
        visit(Rank(order, use));
      }
    }
  };
  int64_t num_left = 0;
  for_each_left([&](uint64_t /*rank*/) { ++num_left; });
  if (num_left * 20 <= options_.capacity * 19) {
    return true;
  }
  const int64_t num_more = num_left - options_.capacity * 9 / 10;
  // Finds the rank of number num_more, digit by digit from the highest.
  constexpr int kDigitBits = 16;
  Array<int64_t> counts;
  if (!counts.Allocate(int64_t{1} << kDigitBits)) {
    return false;
  }
  uint64_t prefix = 0;
  int64_t before = 0;
  for (int shift = 64 - kDigitBits; shift >= 0; shift -= kDigitBits) {
    std::fill(counts.begin(), counts.end(), 0);
    for_each_left([&](uint64_t rank) {
      if (shift == 64 - kDigitBits || rank >> (shift + kDigitBits) == prefix) {
        ++counts[static_cast<int64_t>(rank >> shift & 0xffff)];
      }
    });
    int64_t digit = 0;
    while (digit < counts.size() - 1 && before + counts[digit] < num_more) {
      before += counts[digit++];
    }
    prefix = prefix << kDigitBits | static_cast<uint64_t>(digit);
  }
  eviction->order = order;
  eviction->up_to = prefix;
  eviction->num_last = num_more - before;
  return true;
}

int64_t DynamicTable::Collect(const TableColumns& columns, Eviction* eviction,
                              int64_t* from, int64_t size,
                              int32_t* rows) const {
  int64_t num = 0;
  const int64_t end = first_unused_row();
  if (eviction->used_before == 0 && eviction->order == Order::kNone) {
    *from = end;
  }
  for (; *from < end && num < size; ++*from) {
    const RowUse use = columns.use(*from);
    if (!IsTaken(*eviction, use)) {
      continue;
    }
    const bool is_last = use.last_use >= eviction->used_before &&
                         Rank(eviction->order, use) == eviction->up_to;
    if (!is_last || eviction->num_last-- > 0) {
      rows[num++] = static_cast<int32_t>(*from);
    }
  }
  if (*from >= end) {
    *from = end_row();
  }
  return num;
}

int64_t DynamicTable::Evict(const TableColumns& columns, const void* vectors,
                            const Eviction& eviction, const int32_t* rows,
                            int64_t size) {
  int64_t num = 0;
  for (int64_t i = 0; i < size; ++i) {
    const int32_t row = rows[i];
    const uint64_t hash = HashKey(columns.key(row));
    Stripe& stripe = StripeOf(hash);
    {
      const MutexLock lock(stripe.mu);
      // A row stays if it was used meanwhile, or has another key.
      if (HashKey(columns.key(row)) != hash ||
          !IsTaken(eviction, columns.use(row)) ||
          !TakeAway(columns, vectors, stripe, hash, row)) {
        continue;
      }
    }
    ++num;
    const MutexLock lock(rows_mu_);
    resting_.push_back(row);
  }
  evicted_ += num;
  return num;
}

bool DynamicTable::TakeAway(const TableColumns& columns, const void* vectors,
                            Stripe& stripe, uint64_t hash, int32_t row) {
  if (!SegmentOf(stripe, hash).Erase(hash, row)) {
    return false;
  }
  const MutexLock row_lock(RowLocks::Global().Of(vectors, row));
  columns.set_key(row, 0);
  columns.set_use(row, {RowUse::kRests, 0});
  --in_use_;
  return true;
}

int64_t DynamicTable::Release(const TableColumns& columns, const void* vectors,
                              const int64_t* keys, const int32_t* rows,
                              int64_t size) {
  int64_t num = 0;
  for (int64_t i = 0; i < size; ++i) {
    const uint64_t hash = HashKey(keys[i]);
    Stripe& stripe = StripeOf(hash);
    {
      const MutexLock lock(stripe.mu);
      if (rows[i] < 0 || !HasKey(columns, stripe, hash, keys[i], rows[i]) ||
          !TakeAway(columns, vectors, stripe, hash, rows[i])) {
        continue;
      }
    }
    ++num;
    const MutexLock lock(rows_mu_);
    released_.push_back(rows[i]);
  }
  return num;
}

bool DynamicTable::Read(const TableColumns& columns, int64_t row, int64_t* key,
                        RowUse* use) const {
  if (!columns.use(row).is_in_use()) {
    return false;
  }
  *key = columns.key(row);
  const uint64_t hash = HashKey(*key);
  Stripe& stripe = StripeOf(hash);
  const MutexLock lock(stripe.mu);
  *use = columns.use(row);
  return HasKey(columns, stripe, hash, *key, row);
}

bool DynamicTable::SetUse(const TableColumns& columns, int64_t key, int32_t row,
                          RowUse use) {
  const uint64_t hash = HashKey(key);
  Stripe& stripe = StripeOf(hash);
  const MutexLock lock(stripe.mu);
  if (!HasKey(columns, stripe, hash, key, row)) {
    return false;
  }
  columns.set_use(row, use);
  return true;
}

DynamicTable::Counts DynamicTable::counts() const {
  int64_t bytes = static_cast<int64_t>(sizeof(*this)) +
                  num_stripes() * static_cast<int64_t>(sizeof(Stripe));
  for (int64_t i = 0; i < num_stripes(); ++i) {
    const MutexLock lock(stripes_[i]->mu);
    bytes += stripes_[i]->sketch.bytes();
    for (int64_t k = 0; k < num_segments_; ++k) {
      bytes += segments_[i * num_segments_ + k].bytes() +
               static_cast<int64_t>(sizeof(KeySegment));
    }
  }
  const MutexLock lock(rows_mu_);
  bytes += static_cast<int64_t>(
      (free_.size() + resting_.size() + released_.size()) * sizeof(int32_t));
  return {in_use_,  without_row_, admitted_, evicted_,
          refused_, dropped_,     bytes};
}

int32_t DynamicTable::MostRecentUse(const TableColumns& columns) const {
  int32_t last_use = 0;
  const int64_t end = first_unused_row();
  for (int64_t row = options_.first_row; row < end; ++row) {
    const RowUse use = columns.use(row);
    last_use = use.is_in_use() ? std::max(last_use, use.last_use) : last_use;
  }
  return last_use;
}

int64_t DynamicTable::first_unused_row() const {
  const MutexLock lock(rows_mu_);
  return next_fresh_;
}

}  // namespace tf_syncrep
