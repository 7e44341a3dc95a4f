// Finds the distinct keys among the ids of a batch, part by part.

#ifndef TF_SYNCREP_CC_LIB_TABLE_KEY_REQUESTS_H_
#define TF_SYNCREP_CC_LIB_TABLE_KEY_REQUESTS_H_

#include <cstdint>
#include <vector>

#include "tf_syncrep/cc/lib/array.h"
#include "tf_syncrep/cc/lib/rows/feature_ranges.h"
#include "tf_syncrep/cc/lib/sharder.h"

namespace tf_syncrep {

// All of them are keys of a table.
struct FeatureKeys : IdsOfFeature {
  int32_t table;
};

// It has the distinct keys of each table among the ids of several features, in
// the order of the part that has them and the table. The keys of one table of
// one part are in an order that depends on all ids, and not on the number of
// threads.
class KeyRequests {
 public:
  // Its time is linear in the number of ids. That number and num_parts *
  // num_tables must be below 2^31. If there is no memory, it returns false, and
  // the object is empty.
  [[nodiscard]] bool Find(const std::vector<FeatureKeys>& features,
                          int64_t num_tables, int64_t num_parts,
                          Sharder& sharder);

  // The request to a part consists of the number of keys of each table, and the
  // keys.
  int64_t request_size(int64_t part) const {
    return num_tables_ + KeysBefore(part + 1, 0) - KeysBefore(part, 0);
  }
  void WriteRequest(int64_t part, int64_t* request) const;

  // Writes, for each id of a feature, the place of its key among the keys of
  // all parts, where those of part 0 come first.
  void WritePlaces(int64_t feature, int32_t* places) const;

 private:
  // Ids of one part and table, whose keys are next to each other.
  struct Bucket {
    int64_t first_id;     // how many ids the buckets before it have
    int64_t keys_before;  // and how many distinct keys
  };

  bool Partition(const std::vector<FeatureKeys>& features, int64_t num_parts,
                 Sharder& sharder);

  // The first bucket of a table of a part.
  const Bucket& FirstBucket(int64_t part, int64_t table) const {
    return buckets_[part * table_begins_.back() +
                    table_begins_[static_cast<size_t>(table)]];
  }
  // Where the keys of a bucket begin: in front of them there is an element that
  // the search uses.
  int64_t FirstKey(const Bucket& bucket) const {
    return bucket.first_id + (&bucket - buckets_.data()) + 1;
  }
  int64_t KeysBefore(int64_t part, int64_t table) const {
    return FirstBucket(part, table).keys_before;
  }

  int64_t num_tables_ = 0;
  // Where the ids of each feature begin, and the last ones end.
  std::vector<int64_t> feature_begins_;
  // Where the buckets of each table begin among those of a part, and the last
  // ones end.
  std::vector<int64_t> table_begins_;
  Array<Bucket> buckets_;  // and one that is the end
  Array<int64_t> keys_;    // by bucket, with a gap after those of each
  Array<int32_t> places_;  // one for each id
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_TABLE_KEY_REQUESTS_H_
