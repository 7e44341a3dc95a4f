#include "tf_syncrep/cc/lib/rows/row_gather.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <limits>
#include <type_traits>

#include "tf_syncrep/cc/lib/cpu_dispatch.h"
#include "tf_syncrep/cc/lib/gradient_loops.h"
#include "tf_syncrep/cc/lib/prefetch.h"
#include "tf_syncrep/cc/lib/read_once.h"

namespace tf_syncrep {
namespace {

constexpr int64_t kMinElementsPerThread = 32768;
// How many rows are prefetched ahead: tables are larger than any cache.
constexpr int64_t kRowsAhead = 16;

}  // namespace

template <typename T, typename Out, typename Row>
int64_t GatherRows(const T* table, int64_t num_rows, int64_t width,
                   const Row* rows, int64_t size, MissingRows missing,
                   Out* result, Sharder& sharder) {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  const auto row_bytes = static_cast<int64_t>(sizeof(T)) * width;
  const auto is_row = [=](Row row) { return row >= 0 && row < num_rows; };
  const GradientLoops<Out>& loops = GradientLoopsFor<Out>(BestCpuLevel());
  std::atomic<int64_t> first_bad{kNone};
  const int64_t num_shards =
      sharder.NumShards(size * width, kMinElementsPerThread);
  sharder.Run(num_shards, [&](int64_t shard) {
    const int64_t end = ShardBegin(shard + 1, num_shards, size);
    for (int64_t i = ShardBegin(shard, num_shards, size); i < end; ++i) {
      if (i + kRowsAhead < end) {
        const Row ahead = ReadOnce(&rows[i + kRowsAhead]);
        if (is_row(ahead)) {
          Prefetch<PrefetchFor::kReading>(table + ahead * width, row_bytes);
        }
      }
      const Row number = ReadOnce(&rows[i]);
      if (number == -1 && missing == MissingRows::kZeros) {
        // In every type, zero has no bit set.
        std::memset(static_cast<void*>(result + i * width), 0,
                    static_cast<size_t>(width) * sizeof(Out));
        continue;
      }
      if (!is_row(number)) {
        int64_t bad = first_bad;
        while (i < bad && !first_bad.compare_exchange_weak(bad, i)) {
        }
        return;
      }
      const T* const row = table + number * width;
      Out* const out = result + i * width;
      if constexpr (std::is_same_v<T, Out>) {
        std::memcpy(out, row, static_cast<size_t>(row_bytes));
      } else {
        loops.narrow(width, row, out);
      }
    }
  });
  return first_bad == kNone ? -1 : first_bad.load();
}

#define TF_SYNCREP_INSTANTIATE_OF(T, Out, Row)                                 \
  template int64_t GatherRows(const T*, int64_t, int64_t, const Row*, int64_t, \
                              MissingRows, Out*, Sharder&)
#define TF_SYNCREP_INSTANTIATE_TO(T, Out)     \
  TF_SYNCREP_INSTANTIATE_OF(T, Out, int32_t); \
  TF_SYNCREP_INSTANTIATE_OF(T, Out, int64_t)
#define TF_SYNCREP_INSTANTIATE(T) TF_SYNCREP_INSTANTIATE_TO(T, T)

TF_SYNCREP_INSTANTIATE_ALL_TYPES(TF_SYNCREP_INSTANTIATE);
TF_SYNCREP_INSTANTIATE_TO(float, Half);
TF_SYNCREP_INSTANTIATE_TO(float, BFloat16);

}  // namespace tf_syncrep
