#include "tf_syncrep/cc/lib/table/dynamic_table.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <new>

#include "tf_syncrep/cc/lib/prefetch.h"
#include "tf_syncrep/cc/lib/read_once.h"
#include "tf_syncrep/cc/lib/rows/row_locks.h"

namespace tf_syncrep {
namespace {

// Most rows of a segment, if the table is full: they are moved in a millisecond
// or so.
constexpr int64_t kSegmentRows = 32768;
constexpr int64_t kMostSegments = int64_t{1} << 16;
// Counters of a sketch for each row, at most.
constexpr int64_t kCountersOfRow = 2;
constexpr int64_t kFewestCounters = 1024;  // of a stripe

// Keys that are worth another thread.
constexpr int64_t kMinKeysPerThread = 8192;
// Keys whose memory is on its way at a time.
constexpr int64_t kKeysAtOnce = 32;

// A key of a call, and where it stands there.
struct Asked {
  int64_t key;
  uint64_t hash;
  int64_t place;
};

int64_t NumSegments(int64_t capacity) {
  int64_t num = 1;
  while (num < kMostSegments &&
         num * kNumKeyStripes * kSegmentRows < capacity) {
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

// Appends what there is room for.
bool Reserve(std::vector<int32_t>* rows, int64_t more) {
  const size_t needed = rows->size() + static_cast<size_t>(more);
  if (needed <= rows->capacity()) {
    return true;
  }
  try {
    rows->reserve(std::max(needed, rows->capacity() * 3 / 2));
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

}  // namespace

DynamicTable::DynamicTable(const Options& options)
    : options_(options),
      num_segments_(NumSegments(options.capacity)),
      next_fresh_(options.first_row) {
  const int64_t counters = std::max(
      options.capacity * kCountersOfRow / kNumKeyStripes / 2, kFewestCounters);
  for (int i = 0; i < kNumKeyStripes; ++i) {
    stripes_.push_back(std::make_unique<Stripe>(num_segments_, counters));
  }
}

DynamicTable::BuildStatus DynamicTable::BuildRow(const TableColumns& columns,
                                                 int64_t row) {
  const int64_t key = columns.key(row);
  const uint64_t hash = HashKey(key);
  Stripe& stripe = StripeOf(hash);
  const MutexLock lock(stripe.mu);
  KeySegment& segment = SegmentOf(stripe, hash);
  if (segment.Find(hash, key, columns.keys()) >= 0) {
    return BuildStatus::kSecondRow;
  }
  return segment.Insert(hash, static_cast<int32_t>(row), columns.keys())
             ? BuildStatus::kOk
             : BuildStatus::kOutOfMemory;
}

DynamicTable::BuildStatus DynamicTable::Build(const TableColumns& columns,
                                              int64_t* bad_row) {
  const MutexLock lock(rows_mu_);
  const auto clear = [&]() TF_SYNCREP_REQUIRES(rows_mu_) {
    for (const auto& stripe : stripes_) {
      const MutexLock stripe_lock(stripe->mu);
      for (KeySegment& segment : stripe->segments) {
        segment.Clear();
      }
    }
    next_fresh_ = options_.first_row;
    free_.clear();
    resting_.clear();
    in_use_ = 0;
    last_use_ = 0;
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
    if (use.rests()) {
      if (!Append(static_cast<int32_t>(row), &resting_)) {
        return fail(BuildStatus::kOutOfMemory, row);
      }
    } else if (use.count < 0 || use.last_use < 0 || use.count == 0) {
      return fail(BuildStatus::kBadUse, row);
    } else {
      const BuildStatus status = BuildRow(columns, row);
      if (status != BuildStatus::kOk) {
        return fail(status, row);
      }
      last_use_ = std::max(last_use_, use.last_use);
      ++num_in_use;
    }
    for (; next_fresh_ < row; ++next_fresh_) {
      if (!Append(static_cast<int32_t>(next_fresh_), &free_)) {
        return fail(BuildStatus::kOutOfMemory, row);
      }
    }
    next_fresh_ = row + 1;
  }
  in_use_ = num_in_use;
  return BuildStatus::kOk;
}

// Calls `visit(stripe, hash, key, place)` for each key, under its stripe's
// lock, with the memory that it needs on its way. False when there is no memory
// for what it takes itself.
template <typename Visit>
bool DynamicTable::ForEachByStripe(const TableColumns& columns,
                                   const int64_t* keys, int64_t size,
                                   Sharder& sharder, const Visit& visit) {
  Array<Asked> asked;
  Array<uint64_t> hashes;
  if (!asked.Allocate(size)) {
    return false;
  }
  // By stripe, in the order of the call. Keys are read once: others may change
  // them meanwhile.
  Array<int64_t> copies;
  if (!copies.Allocate(size)) {
    return false;
  }
  int64_t begins[kNumKeyStripes + 1] = {};
  for (int64_t i = 0; i < size; ++i) {
    copies[i] = ReadOnce(&keys[i]);
    ++begins[KeyStripe(HashKey(copies[i])) + 1];
  }
  for (int i = 0; i < kNumKeyStripes; ++i) {
    begins[i + 1] += begins[i];
  }
  int64_t next[kNumKeyStripes];
  std::copy(begins, begins + kNumKeyStripes, next);
  for (int64_t i = 0; i < size; ++i) {
    const uint64_t hash = HashKey(copies[i]);
    asked[next[KeyStripe(hash)]++] = {copies[i], hash, i};
  }
  // Calls that began at the same stripe would wait for each other all the way.
  const uint32_t start = next_stripe_.fetch_add(1) * 23;
  const int64_t num_shards = std::min<int64_t>(
      sharder.NumShards(size, kMinKeysPerThread), kNumKeyStripes);
  sharder.Run(num_shards, [&](int64_t shard) {
    const int64_t last = ShardBegin(shard + 1, num_shards, kNumKeyStripes);
    for (int64_t s = ShardBegin(shard, num_shards, kNumKeyStripes); s < last;
         ++s) {
      const int64_t number = (s + start) % kNumKeyStripes;
      if (begins[number] == begins[number + 1]) {
        continue;
      }
      Stripe& stripe = *stripes_[number];
      const MutexLock lock(stripe.mu);
      for (int64_t begin = begins[number]; begin < begins[number + 1];
           begin += kKeysAtOnce) {
        const int64_t end = std::min(begin + kKeysAtOnce, begins[number + 1]);
        for (int64_t i = begin; i < end; ++i) {
          SegmentOf(stripe, asked[i].hash).PrefetchBucket(asked[i].hash);
        }
        for (int64_t i = begin; i < end; ++i) {
          const int32_t row =
              SegmentOf(stripe, asked[i].hash).Guess(asked[i].hash);
          if (row >= 0) {
            Prefetch<PrefetchFor::kReading>(columns.keys() + row, 8);
            Prefetch<PrefetchFor::kWriting>(columns.address_of_use(row), 8);
          }
        }
        for (int64_t i = begin; i < end; ++i) {
          visit(stripe, asked[i]);
        }
      }
    }
  });
  return true;
}

void DynamicTable::Find(const TableColumns& columns, const int64_t* keys,
                        int64_t size, int32_t* rows, Sharder& sharder,
                        bool* has_memory) {
  *has_memory = ForEachByStripe(
      columns, keys, size, sharder,
      [&](Stripe& stripe, const Asked& asked) TF_SYNCREP_REQUIRES(stripe.mu) {
        rows[asked.place] = SegmentOf(stripe, asked.hash)
                                .Find(asked.hash, asked.key, columns.keys());
      });
}

void DynamicTable::FindAndUse(const TableColumns& columns, int32_t clock,
                              const int64_t* keys, int64_t size, int32_t* rows,
                              Sharder& sharder, bool* has_memory) {
  std::atomic<bool> has_counters{true};
  *has_memory = ForEachByStripe(
      columns, keys, size, sharder,
      [&](Stripe& stripe, const Asked& asked) TF_SYNCREP_REQUIRES(stripe.mu) {
        int32_t& row = rows[asked.place];
        row = SegmentOf(stripe, asked.hash)
                  .Find(asked.hash, asked.key, columns.keys());
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

int64_t DynamicTable::TakeFree(int64_t size, int32_t* rows) {
  const MutexLock lock(rows_mu_);
  const auto num_free = static_cast<int64_t>(free_.size());
  const int64_t from_list = std::min(size, num_free);
  const int64_t fresh = std::min(size - from_list, end_row() - next_fresh_);
  if (!Reserve(&free_, fresh)) {
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

void DynamicTable::GiveBack(const int32_t* rows, int64_t size) {
  const MutexLock lock(rows_mu_);
  // In the order in which they would have been taken.
  for (int64_t i = size - 1; i >= 0; --i) {
    free_.push_back(rows[i]);
  }
}

int32_t DynamicTable::Add(const TableColumns& columns, const void* vectors,
                          int64_t key, RowUse use, int32_t row) {
  const uint64_t hash = HashKey(key);
  Stripe& stripe = StripeOf(hash);
  int32_t found = -1;
  {
    const MutexLock lock(stripe.mu);
    KeySegment& segment = SegmentOf(stripe, hash);
    found = segment.Find(hash, key, columns.keys());
    if (found >= 0) {
      columns.set_use(found, UsedOnceMore(columns.use(found), use.last_use));
    } else if (segment.Insert(hash, row, columns.keys())) {
      const std::lock_guard<std::mutex> row_lock(
          RowLocks::Global().Of(vectors, row));
      columns.set_key(row, key);
      columns.set_use(row, use);
      ++in_use_;
      ++admitted_;
      return row;
    }
  }
  GiveBack(&row, 1);
  return found >= 0 ? found : kNoRow;
}

void DynamicTable::CountWithoutRow(int64_t num, int64_t num_refused) {
  without_row_ += num;
  refused_ += num_refused;
}

void DynamicTable::CountDropped(int64_t num) { dropped_ += num; }

Array<int32_t> DynamicTable::TakeResting(bool* has_memory) {
  Array<int32_t> rows;
  const MutexLock lock(rows_mu_);
  *has_memory = rows.Allocate(static_cast<int64_t>(resting_.size()));
  if (*has_memory) {
    std::copy(resting_.begin(), resting_.end(), rows.begin());
    resting_.clear();
  }
  return rows;
}

void DynamicTable::PutBackResting(const int32_t* rows, int64_t size) {
  const MutexLock lock(rows_mu_);
  resting_.insert(resting_.end(), rows, rows + size);
}

void DynamicTable::Free(const TableColumns& columns, const void* vectors,
                        const int32_t* rows, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    const std::lock_guard<std::mutex> row_lock(
        RowLocks::Global().Of(vectors, rows[i]));
    columns.set_use(rows[i], {0, 0});
  }
  GiveBack(rows, size);
}

bool DynamicTable::IsTaken(const Eviction& eviction, RowUse use) {
  return use.is_in_use() && (use.last_use < eviction.used_before ||
                             (eviction.order != Order::kNone &&
                              Rank(eviction.order, use) <= eviction.up_to));
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
  {
    const MutexLock lock(rows_mu_);
    if (!Reserve(&resting_, size) || !Reserve(&free_, size)) {
      return -1;
    }
  }
  int64_t num = 0;
  for (int64_t i = 0; i < size; ++i) {
    const int32_t row = rows[i];
    const uint64_t hash = HashKey(columns.key(row));
    Stripe& stripe = StripeOf(hash);
    {
      const MutexLock lock(stripe.mu);
      // Not if the row was used meanwhile, or has another key.
      if (HashKey(columns.key(row)) != hash ||
          !IsTaken(eviction, columns.use(row)) ||
          !SegmentOf(stripe, hash).Erase(hash, row)) {
        continue;
      }
      const std::lock_guard<std::mutex> row_lock(
          RowLocks::Global().Of(vectors, row));
      columns.set_key(row, 0);
      columns.set_use(row, {RowUse::kRests, 0});
    }
    --in_use_;
    ++num;
    const MutexLock lock(rows_mu_);
    resting_.push_back(row);
  }
  evicted_ += num;
  return num;
}

bool DynamicTable::SetUse(const TableColumns& columns, int64_t key, int32_t row,
                          RowUse use) {
  Stripe& stripe = StripeOf(HashKey(key));
  const MutexLock lock(stripe.mu);
  if (columns.key(row) != key || !columns.use(row).is_in_use()) {
    return false;
  }
  columns.set_use(row, use);
  return true;
}

DynamicTable::Counts DynamicTable::counts() const {
  int64_t bytes = static_cast<int64_t>(sizeof(*this)) +
                  kNumKeyStripes * static_cast<int64_t>(sizeof(Stripe));
  for (const auto& stripe : stripes_) {
    const MutexLock lock(stripe->mu);
    bytes += stripe->sketch.bytes();
    for (const KeySegment& segment : stripe->segments) {
      bytes += segment.bytes() + static_cast<int64_t>(sizeof(segment));
    }
  }
  const MutexLock lock(rows_mu_);
  bytes += static_cast<int64_t>((free_.capacity() + resting_.capacity()) *
                                sizeof(int32_t));
  return {in_use_,  without_row_, admitted_, evicted_,
          refused_, dropped_,     bytes};
}

int64_t DynamicTable::first_unused_row() const {
  const MutexLock lock(rows_mu_);
  return next_fresh_;
}

}  // namespace tf_syncrep
