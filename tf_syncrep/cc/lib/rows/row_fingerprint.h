// A number that tells whether a row has changed.

#ifndef TF_SYNCREP_CC_LIB_ROWS_ROW_FINGERPRINT_H_
#define TF_SYNCREP_CC_LIB_ROWS_ROW_FINGERPRINT_H_

#include <cstdint>

namespace tf_syncrep {

// Returns the fingerprint of `num` bytes and of the bytes before them, whose
// fingerprint is `seed`. Two different rows have the same fingerprint with a
// probability of about 2^-64. It does not withstand somebody who searches for
// such rows.
uint64_t RowFingerprint(const char* bytes, int64_t num, uint64_t seed);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ROWS_ROW_FINGERPRINT_H_
