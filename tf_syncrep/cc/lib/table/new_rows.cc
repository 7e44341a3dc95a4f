#include "tf_syncrep/cc/lib/table/new_rows.h"

#include <algorithm>
#include <utility>

#include "tf_syncrep/cc/lib/float16.h"
#include "tf_syncrep/cc/lib/mutex.h"
#include "tf_syncrep/cc/lib/rows/row_locks.h"

namespace tf_syncrep {
namespace {

// Initial vectors take so long that few elements are worth another thread.
constexpr int64_t kMinDrawnPerThread = 2048;

}  // namespace

bool NewRows::Allocate(int64_t size) {
  return keys_.Allocate(size) && places_.Allocate(size) &&
         free_rows_.Allocate(size) && rows_.Allocate(size);
}

bool NewRows::Take(int64_t table, int64_t* num_refused) {
  const int64_t build = index_->table(table).build();
  const int64_t taken =
      index_->table(table).TakeFree(end_ - size(), free_rows_.data() + size());
  if (taken < 0) {
    return false;
  }
  *num_refused = end_ - size() - taken;
  end_ = size() + taken;
  if (taken > 0) {
    taken_.push_back({table, end_, build});
  }
  return true;
}

template <typename T>
void NewRows::Draw(int64_t width, T* vectors, Sharder& sharder) const {
  int64_t begin = 0;
  for (const auto& [table, end, build] : taken_) {
    const InitialValues& initial = index_->initial_values(table);
    const int64_t first = begin;
    sharder.RunParts(
        end - first, std::max<int64_t>(1, kMinDrawnPerThread / (width + 1)), 1,
        [&](int64_t from, int64_t to) {
          for (int64_t i = first + from; i < first + to; ++i) {
            const int64_t row = free_rows_[i];
            const MutexLock lock(RowLocks::Global().Of(vectors, row));
            initial.Draw(keys_[i], width, vectors + row * width);
          }
        });
    begin = end;
  }
}

bool NewRows::Add(const TableColumns& columns, const void* vectors, RowUse use,
                  int32_t* rows, Sharder& sharder, bool were_seen) {
  int64_t begin = 0;
  bool has_memory = true;
  const auto all_taken = std::move(taken_);
  taken_.clear();
  for (const auto& [table, end, build] : all_taken) {
    bool has_room;
    index_->table(table).Add(columns, vectors, keys_.data() + begin,
                             end - begin, use, free_rows_.data() + begin,
                             rows_.data() + begin, sharder, &has_room,
                             were_seen);
    has_memory &= has_room;
    for (; begin < end; ++begin) {
      rows[places_[begin]] = rows_[begin];
    }
  }
  return has_memory;
}

void NewRows::GiveBack() {
  int64_t begin = 0;
  for (const auto& [table, end, build] : taken_) {
    index_->table(table).GiveBack(free_rows_.data() + begin, end - begin,
                                  build);
    begin = end;
  }
}

#define TF_SYNCREP_INSTANTIATE(T) \
  template void NewRows::Draw(int64_t, T*, Sharder&) const
TF_SYNCREP_INSTANTIATE_ALL_TYPES(TF_SYNCREP_INSTANTIATE);

}  // namespace tf_syncrep
