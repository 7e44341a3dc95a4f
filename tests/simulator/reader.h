// A reader of the work queue: it asks for an item, reads it, and asks again.

#ifndef TESTS_SIMULATOR_READER_H_
#define TESTS_SIMULATOR_READER_H_

#include <cstdint>

#include "tests/simulator/actor.h"
#include "tf_syncrep/cc/lib/work_queue.h"

namespace tf_syncrep::simulator {

class Reader final : public Actor {
 public:
  Reader(int number, Cluster* cluster)
      : Actor({Task::Job::kReader, number}, cluster) {}

  // Whether it has been told of the end. Another pass may begin anew.
  bool is_over() const override { return has_ended_; }

  // Begins its dataset anew. The item that it was reading does not count as
  // read.
  bool Again();

  // The question whose answer it waits for, or null.
  Call* question() const {
    return pending().empty() ? nullptr : pending().front();
  }

 private:
  void Begin() override;
  void Next() override;
  void Take(Call* call) override;
  void GoOn() override;

  bool has_ended_ = false;
  // The item that it has. It has been read to its end when the reader asks for
  // the next one.
  WorkQueue::Grant grant_;
  bool is_read_ = false;
};

}  // namespace tf_syncrep::simulator

#endif  // TESTS_SIMULATOR_READER_H_
