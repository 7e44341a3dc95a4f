// Where the rows of tables are, in variables and in files.

#ifndef TF_SYNCREP_CC_TF_TABLE_PIECES_H_
#define TF_SYNCREP_CC_TF_TABLE_PIECES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/tensor_slice.h"

namespace tf_syncrep {

// Rows of one table that are in one variable, next to each other: row k of them
// is row first + k * stride of the table. With a stride of 1 they are a range
// of rows, otherwise all that are congruent to `first` modulo the stride.
struct TablePiece {
  int64_t group;       // number of the variable, among those with slots
  int64_t begin;       // the first of these rows in the variable
  int64_t num_rows;    // how many they are; may be 0
  int64_t first;       // less than the stride, unless that is 1
  int64_t stride;      // into how many pieces the table is parted, or 1
  int64_t vocabulary;  // rows of the table
  // Of a table that grows, which array of the group has the uses of its rows:
  // int32 of shape [rows, 2], of which the second is 0 where a row is free, and
  // then there is nothing to write of it. Otherwise -1.
  int64_t uses;
  std::vector<std::string> names;  // in files: of the table and each slot

  // Where row `id` of the table is in the variable; -1 if it is not there.
  int64_t RowOf(int64_t id) const;

  // Rows of each piece of a parted table as files have them: the last one may
  // be padding, of zeros, so that all pieces have equally many.
  int64_t stored_rows() const { return (vocabulary - 1) / stride + 1; }

  // In files, a table that is parted has one more dimension: row r is at [r /
  // stride, r % stride]. One that is not is stored as it is. Errors:
  // InvalidArgument if there are too many elements for any tensor.
  absl::Status StoredShape(const tensorflow::TensorShape& row_shape,
                           tensorflow::TensorShape* shape) const;

  // Names rows [begin, end) of this piece.
  tensorflow::TensorSlice StoredSlice(int64_t begin, int64_t end,
                                      int row_dims) const;

  // In files of rows that have changed: of what is there of an array, or of
  // the rows' numbers in the table, in a chunk.
  std::string ChangedKey(const std::string& name, int64_t chunk,
                         const char* of) const;
};

// Reads an op's inputs "pieces" and "piece_names". `group_sizes`: how many
// arrays each group has.
absl::Status ReadPieces(tensorflow::OpKernelContext* ctx,
                        const std::vector<int64_t>& group_sizes,
                        std::vector<TablePiece>* pieces);

// Checks that pieces of one group come one after the other and cover just the
// rows that there are.
absl::Status CheckPieces(const std::vector<TablePiece>& pieces,
                         const std::vector<int64_t>& group_rows);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_TF_TABLE_PIECES_H_
