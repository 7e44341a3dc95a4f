// Times the index of a table that grows, on one thread.
//
//   dynamic_table_bench KEYS ROUNDS
//
// In each round it gives rows to so many keys, 4,096 in a call. It finds all of
// them in random order, 65,536 in a call, and looks for as many that are not
// there. It prints for each round the seconds of processor time of a key that
// is added, found, and not found; the longest processor time of a call that
// adds; the time of a row when the index is made from the columns; and the
// bytes of the index for each row. The exit status is 1 if a key's row is
// wrong.

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "tf_syncrep/cc/lib/sharder.h"
#include "tf_syncrep/cc/lib/table/dynamic_table.h"
#include "tf_syncrep/cc/lib/zero_pages.h"

namespace {

using tf_syncrep::DynamicTable;
using tf_syncrep::TableColumns;

constexpr int64_t kAddedAtOnce = 4096;
constexpr int64_t kFoundAtOnce = 65536;

class OneThread final : public tf_syncrep::Sharder {
 private:
  int num_threads() const override { return 1; }
  void Schedule(std::function<void()> task) override { task(); }
};

double Seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) +
         static_cast<double>(now.tv_nsec) * 1e-9;
}

// The keys of different numbers are different, and in no order.
int64_t KeyOf(int64_t number) {
  return static_cast<int64_t>(static_cast<uint64_t>(number) *
                              0xda942042e4dd58b5u);
}

void Fail(const char* what) {
  std::fprintf(stderr, "wrong: %s\n", what);
  std::exit(1);
}

struct Round {
  double added = 0;
  double found = 0;
  double absent = 0;
  double longest = 0;
  double built = 0;
  double bytes = 0;
};

Round Run(int64_t num_keys, uint32_t seed) {
  const auto bytes = static_cast<size_t>(num_keys) * sizeof(int64_t);
  const tf_syncrep::OwnedBuffer key_column = tf_syncrep::ZeroPages(bytes);
  const tf_syncrep::OwnedBuffer use_column = tf_syncrep::ZeroPages(bytes);
  const TableColumns columns(static_cast<int64_t*>(key_column.data),
                             use_column.data);
  DynamicTable table({0, num_keys, 1});
  OneThread sharder;
  bool has_memory = true;
  std::vector<int64_t> keys(kFoundAtOnce);
  std::vector<int32_t> rows(kFoundAtOnce);
  std::vector<int32_t> free_rows(kAddedAtOnce);
  Round round;
  for (int64_t begin = 0; begin < num_keys; begin += kAddedAtOnce) {
    const int64_t size = std::min(kAddedAtOnce, num_keys - begin);
    for (int64_t i = 0; i < size; ++i) {
      keys[i] = KeyOf(begin + i);
    }
    const double start = Seconds();
    table.FindAndUse(columns, 1, keys.data(), size, rows.data(), sharder,
                     &has_memory);
    if (table.TakeFree(size, free_rows.data()) != size) {
      Fail("there are rows");
    }
    table.Add(columns, key_column.data, keys.data(), size, {1, 1},
              free_rows.data(), rows.data(), sharder, &has_memory);
    const double seconds = Seconds() - start;
    round.added += seconds;
    round.longest = std::max(round.longest, seconds);
    for (int64_t i = 0; i < size; ++i) {
      if (rows[i] != begin + i) {
        Fail("the row of a new key");
      }
    }
  }
  std::vector<int32_t> order(num_keys);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  const auto find = [&](int64_t shift, bool are_there) {
    double seconds = 0;
    for (int64_t begin = 0; begin < num_keys; begin += kFoundAtOnce) {
      const int64_t size = std::min(kFoundAtOnce, num_keys - begin);
      for (int64_t i = 0; i < size; ++i) {
        keys[i] = KeyOf(shift + order[begin + i]);
      }
      const double start = Seconds();
      table.Find(columns, keys.data(), size, rows.data(), sharder, &has_memory);
      seconds += Seconds() - start;
      for (int64_t i = 0; i < size; ++i) {
        if (rows[i] != (are_there ? order[begin + i] : -1)) {
          Fail("the row of a key");
        }
      }
    }
    return seconds;
  };
  round.found = find(0, true);
  round.absent = find(num_keys, false);
  DynamicTable again({0, num_keys, 1});
  int64_t bad_row;
  const double start = Seconds();
  if (again.Build(columns, sharder, &bad_row) !=
      DynamicTable::BuildStatus::kOk) {
    Fail("the columns are those of a table");
  }
  const auto num = static_cast<double>(num_keys);
  round.built = (Seconds() - start) / num;
  round.bytes = static_cast<double>(table.counts().bytes) / num;
  round.added /= num;
  round.found /= num;
  round.absent /= num;
  return round;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: dynamic_table_bench KEYS ROUNDS\n");
    return 2;
  }
  const int64_t num_keys = std::atoll(argv[1]);
  const int rounds = std::atoi(argv[2]);
  for (int i = 0; i < rounds; ++i) {
    const Round round = Run(num_keys, static_cast<uint32_t>(i));
    std::printf("%.9g %.9g %.9g %.9g %.9g %.9g\n", round.added, round.found,
                round.absent, round.longest, round.built, round.bytes);
  }
  return 0;
}
