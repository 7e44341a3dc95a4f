// Finds the distinct keys that the ids of a batch are, part by part.

#ifndef TF_SYNCREP_CC_LIB_TABLE_KEY_REQUESTS_H_
#define TF_SYNCREP_CC_LIB_TABLE_KEY_REQUESTS_H_

#include <cstdint>
#include <vector>

#include "tf_syncrep/cc/lib/array.h"
#include "tf_syncrep/cc/lib/sharder.h"

namespace tf_syncrep {

// The ids of one feature, all of which are keys of a table.
struct FeatureKeys {
  const int32_t* ids32;  // these, or else
  const int64_t* ids64;  // these
  int64_t size;
  int32_t table;
};

// The keys that several features' ids are, each once for a table, by the part
// that has them, table and key, and which of them each id is. None of it
// depends on the number of threads.
class KeyRequests {
 public:
  // Takes time linear in the number of ids, which is below 2^31; num_parts *
  // num_tables is, too. Returns false, and the object is as it was made, when
  // there is no memory.
  [[nodiscard]] bool Find(const std::vector<FeatureKeys>& features,
                          int64_t num_tables, int64_t num_parts,
                          Sharder& sharder);

  // What a part is asked: how many keys of each table, and the keys.
  int64_t request_size(int64_t part) const {
    return num_tables_ + begins_[(part + 1) * num_tables_] -
           begins_[part * num_tables_];
  }
  void WriteRequest(int64_t part, int64_t* request) const;

  // Writes, for each id of a feature, the place of its key among those of all
  // parts, those of part 0 first.
  void WritePlaces(int64_t feature, int32_t* places) const;

 private:
  bool Sort(const std::vector<FeatureKeys>& features, int64_t num_parts,
            Sharder& sharder);

  int64_t num_tables_ = 0;
  std::vector<int64_t> feature_begins_;  // and where the last one ends
  Array<int64_t>
      begins_;  // of each table of each part among the keys, likewise
  Array<int64_t> keys_;
  Array<int32_t> places_;  // of each id
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_TABLE_KEY_REQUESTS_H_
