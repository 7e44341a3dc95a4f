// NewRows gives rows to keys that have none.

#ifndef TF_SYNCREP_CC_LIB_TABLE_NEW_ROWS_H_
#define TF_SYNCREP_CC_LIB_TABLE_NEW_ROWS_H_

#include <cstdint>
#include <vector>

#include "tf_syncrep/cc/lib/array.h"
#include "tf_syncrep/cc/lib/sharder.h"
#include "tf_syncrep/cc/lib/table/table_columns.h"
#include "tf_syncrep/cc/lib/table/table_index.h"

namespace tf_syncrep {

// The keys that are about to get rows, table by table, and free rows for them.
// The vectors are drawn first, and then the keys are added, so that whoever
// finds a key also finds its vector. Rows that do not get a key are given back
// at the end.
class NewRows {
 public:
  explicit NewRows(TableIndex* index) : index_(index) {}
  ~NewRows() { GiveBack(); }
  NewRows(const NewRows&) = delete;
  NewRows& operator=(const NewRows&) = delete;

  // Returns false if there is no memory for so many keys.
  [[nodiscard]] bool Allocate(int64_t size);

  // Appends a key, and its place in the caller's arrays.
  void Append(int64_t key, int64_t place) {
    keys_[end_] = key;
    places_[end_++] = place;
  }

  // Takes rows for the keys that were appended since the last call, all of
  // which belong to `table`. Keys for which there is no row are removed again,
  // and `num_refused` is set to their number. Returns false if there is no
  // memory.
  [[nodiscard]] bool Take(int64_t table, int64_t* num_refused);

  int64_t size() const { return taken_.empty() ? 0 : taken_.back().end; }
  const int32_t* free_rows() const { return free_rows_.data(); }

  // Gives the rows their initial vectors. No lookup can find the rows yet.
  template <typename T>
  void Draw(int64_t width, T* vectors, Sharder& sharder) const;

  // Adds the keys to the index, and sets their rows in the caller's array.
  // Keys that were seen in training count as admitted. Returns false if there
  // was no memory for some.
  [[nodiscard]] bool Add(const TableColumns& columns, const void* vectors,
                         RowUse use, int32_t* rows, Sharder& sharder,
                         bool were_seen = true);

 private:
  struct Taken {
    int64_t table;
    int64_t end;    // where its keys end
    int64_t build;  // the table's, when they were taken
  };

  void GiveBack();

  TableIndex* const index_;
  Array<int64_t> keys_;
  Array<int64_t> places_;
  Array<int32_t> free_rows_;
  Array<int32_t> rows_;
  int64_t end_ = 0;
  std::vector<Taken> taken_;  // of each table that has keys
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_TABLE_NEW_ROWS_H_
