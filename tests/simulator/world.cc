#include "tests/simulator/world.h"

#include <algorithm>
#include <iomanip>
#include <sstream>
#include <utility>

namespace tf_syncrep::simulator {
namespace {

GateStatus Unavailable() { return {Call::kUnavailable, "The task is lost."}; }

std::string Seconds(int64_t nanoseconds) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(3)
      << static_cast<double>(nanoseconds) / 1e9 << " s";
  return out.str();
}

bool IsOf(Task::Job job, const Event& event) { return event.task.job == job; }

}  // namespace

World::World(const Setup& setup, Trace trace)
    : trace_(std::move(trace)),
      cluster_{setup,
               [this](Call call) { return Send(std::move(call)); },
               [this] { return now_; },
               [this] {
                 return std::any_of(servers_.begin(), servers_.end(),
                                    [](const auto& server) {
                                      return server->has_lost_variables();
                                    });
               },
               [this] { return num_contributions_++; },
               [this](const std::string& failure) { Fail(failure); },
               [this] { return chief_.HasBegun(); },
               [this] { return chief_.HasFailed(); },
               [this] { chief_.BeginSession(); },
               [this] { chief_.EndSession(); },
               [this] { return workers_[0]->is_over(); }},
      twin_(static_cast<int>(setup.num_variables), setup.sparse),
      chief_(&cluster_) {
  WatchedGate::Log log;
  if (trace_) {
    log = [this](const GateRecord& record) {
      GateRecord untimed = record;
      untimed.time = 0;
      Say("    " + Seconds(record.time) + " gate: " + Text(untimed));
    };
  }
  const auto log_of = [this](const std::string& what) -> Trace {
    if (!trace_) {
      return nullptr;
    }
    return [this, what](const std::string& line) {
      Say("    " + Seconds(now_.count()) + " " + what + ": " + line);
    };
  };
  for (int i = 0; i < setup.num_servers; ++i) {
    servers_.push_back(std::make_unique<Server>(
        i, setup, [this] { return now_; }, &twin_, log, log_of("work queue"),
        log_of("table")));
  }
  for (int i = 0; i < setup.num_workers; ++i) {
    workers_.push_back(std::make_unique<Worker>(i, &cluster_));
  }
  for (int i = 0; i < setup.num_workers * setup.num_readers; ++i) {
    readers_.push_back(std::make_unique<Reader>(i, &cluster_));
  }
  for (int i = 0; i < setup.num_workers * setup.num_trainers; ++i) {
    trainers_.push_back(std::make_unique<Trainer>(i, &cluster_));
  }
}

bool World::Apply(const Event& event) {
  bool happened = false;
  // The event is traced by its effects, or alone; not at all if it is
  // impossible.
  event_ = trace_ ? Text(event) : "";
  switch (event.kind) {
    case EventKind::kGo:
    case EventKind::kSend: {
      Actor* actor = ActorOf(event.task);
      happened = actor != nullptr &&
                 (event.kind == EventKind::kGo ? Go(actor) : actor->Start());
      break;
    }
    case EventKind::kDeliver: {
      Call* call = Find(event, Call::State::kOnItsWay);
      happened = call != nullptr && Deliver(call);
      break;
    }
    case EventKind::kRun: {
      Call* call = Find(event, Call::State::kRuns);
      happened = call != nullptr && Run(call);
      break;
    }
    case EventKind::kReturn: {
      Call* call = Find(event, Call::State::kComesBack);
      happened = call != nullptr && Return(call);
      break;
    }
    case EventKind::kPass:
      happened = Pass(event.value);
      break;
    case EventKind::kCrash:
      happened = Crash(event.task);
      break;
    case EventKind::kRestart:
      happened = Restart(event.task);
      break;
    case EventKind::kCut:
    case EventKind::kHeal:
    case EventKind::kBreak:
      happened = ApplyToLink(event);
      break;
    case EventKind::kDelete: {
      WatchedGate* gate = servers_[0]->gate();
      happened = servers_[0]->is_up() && !gate->is_deleted();
      if (happened) {
        gate->Delete(num_calls_);
      }
      break;
    }
    default:
      happened = IsOf(Task::Job::kWorker, event)   ? ApplyToWorker(event)
                 : IsOf(Task::Job::kReader, event) ? ApplyToReader(event)
                                                   : ApplyToChief(event);
      break;
  }
  if (happened) {
    now_ += kTick;
    Poll();
    CheckErrors();
    Digest(event);
    Say("");
  }
  return happened;
}

void World::Fail(const std::string& failure) {
  if (failure_.empty()) {
    failure_ = failure;
  }
}

bool World::IsCut(const Task& task, const Task& server) const {
  const std::pair link(setup().ProcessOf(task), server);
  return std::any_of(cuts_.begin(), cuts_.end(), [&link](const auto& cut) {
    return cut.first == link.first && cut.second == link.second;
  });
}

Actor* World::ActorOf(const Task& task) {
  switch (task.job) {
    case Task::Job::kChief:
      return &chief_;
    case Task::Job::kServer:
      return nullptr;
    case Task::Job::kWorker:
      return static_cast<size_t>(task.number) < workers_.size()
                 ? workers_[task.number].get()
                 : nullptr;
    case Task::Job::kReader:
      return static_cast<size_t>(task.number) < readers_.size()
                 ? readers_[task.number].get()
                 : nullptr;
    case Task::Job::kTrainer:
      return static_cast<size_t>(task.number) < trainers_.size()
                 ? trainers_[task.number].get()
                 : nullptr;
  }
  return nullptr;
}

std::vector<Actor*> World::ActorsIn(const Task& process) {
  std::vector<Actor*> actors;
  const auto add = [&](Actor* actor) {
    if (setup().ProcessOf(actor->task()) == process) {
      actors.push_back(actor);
    }
  };
  add(&chief_);
  for (const auto& worker : workers_) {
    add(worker.get());
  }
  for (const auto& reader : readers_) {
    add(reader.get());
  }
  for (const auto& trainer : trainers_) {
    add(trainer.get());
  }
  return actors;
}

Call* World::Send(Call call) {
  call.number = ++num_calls_;
  call.to_life = servers_[call.to.number]->life();
  calls_.push_back(std::make_unique<Call>(std::move(call)));
  return calls_.back().get();
}

Call* World::Find(const Event& event, Call::State state) {
  for (const auto& call : calls_) {
    if (call->state == state && call->kind == event.call &&
        call->from == event.task && call->from_life == event.life &&
        call->variable == event.variable && call->to == event.other) {
      return call.get();
    }
  }
  return nullptr;
}

bool World::Go(Actor* actor) {
  bool has_moved = false;
  std::vector<Call*> under_way;
  for (const auto& call : calls_) {
    if (call->from == actor->task() && call->from_life == actor->life()) {
      const std::vector<Call*>& pending = actor->pending();
      const bool is_beside = actor->task().job == Task::Job::kChief;
      if (is_beside || std::find(pending.begin(), pending.end(), call.get()) !=
                           pending.end()) {
        under_way.push_back(call.get());
      }
    }
  }
  for (Call* call : under_way) {
    has_moved |= Bring(call);
  }
  if (has_moved || !actor->Start()) {
    return has_moved;
  }
  const std::vector<Call*> made = actor->pending();
  for (Call* call : made) {
    Bring(call);
  }
  return true;
}

bool World::Bring(Call* call) {
  bool has_moved = call->state == Call::State::kOnItsWay && Deliver(call);
  while (call->state == Call::State::kRuns && Run(call)) {
    has_moved = true;
  }
  return (call->state == Call::State::kComesBack && Return(call)) || has_moved;
}

bool World::Run(Call* call) { return servers_[call->to.number]->Run(call); }

bool World::Deliver(Call* call) {
  if (IsCut(call->from, call->to)) {
    return false;
  }
  Server& server = *servers_[call->to.number];
  const Actor* actor = ActorOf(call->from);
  // The gate cannot know which of two lives is the later: it takes the one that
  // it has not seen before for the later one. So messages that a process has
  // sent before it was first heard of are assumed not to outlive it. Nor does a
  // chief's order to begin anew arrive after that of its successor.
  const bool is_of_unknown_past =
      call->from_life < actor->life() &&
      (call->kind == CallKind::kReset || call->kind == CallKind::kOpen ||
       (call->kind == CallKind::kAcquire && server.is_up() &&
        !server.gate()->HasHeardOf(*call)) ||
       (call->kind == CallKind::kItem && server.queue() != nullptr &&
        !server.queue()->HasHeardOf(*call)));
  if (!server.is_up() || server.life() != call->to_life || is_of_unknown_past) {
    call->status = Unavailable();
    call->state = Call::State::kComesBack;
    return true;
  }
  server.Handle(call);
  item_is_nobodys_ |= call->kind == CallKind::kItem &&
                      readers_[call->from.number]->question() != call;
  if (call->kind == CallKind::kTake && !call->status.ok()) {
    CheckFailedTake(*call);
  }
  return true;
}

void World::CheckFailedTake(const Call& call) {
  const std::vector<Call*>& pending = chief_.pending();
  const bool is_awaited =
      std::find(pending.begin(), pending.end(), &call) != pending.end();
  const Server& gates = *servers_[0];
  if (is_awaited && !servers_[call.to.number]->has_lost_variables() &&
      gates.is_up() && gates.gate()->Stats().generation == call.generation) {
    Fail("the mean of round " + std::to_string(call.round) +
         ", which is full, cannot be taken: " + call.status.message);
  }
}

bool World::Return(Call* call) {
  if (IsCut(call->from, call->to)) {
    return false;
  }
  if (trace_ && !call->status.ok()) {
    Say("    " + Text(call->from) + "'s " + Text(call->kind) +
        " fails: " + call->status.message);
  }
  if (Actor* actor = ActorOf(call->from)) {
    actor->Answer(call);
  }
  Drop(call);
  return true;
}

void World::Drop(Call* call) {
  calls_.erase(
      std::find_if(calls_.begin(), calls_.end(),
                   [call](const auto& entry) { return entry.get() == call; }));
}

bool World::Break(const Event& event) {
  const Task process = setup().ProcessOf(event.task);
  std::vector<Call*> broken;
  for (const auto& call : calls_) {
    if (setup().ProcessOf(call->from) == process && call->to == event.other) {
      broken.push_back(call.get());
    }
  }
  for (Call* call : broken) {
    ActorOf(call->from)->Lose(call);
    // The server does not know of it: waits and ops there go on.
    if (call->state != Call::State::kWaits &&
        call->state != Call::State::kRuns) {
      Drop(call);
    }
  }
  return !broken.empty();
}

bool World::Crash(const Task& task) {
  if (task.job == Task::Job::kServer) {
    if (static_cast<size_t>(task.number) >= servers_.size() ||
        !servers_[task.number]->is_up()) {
      return false;
    }
    servers_[task.number]->Crash();
    LoseCallsTo(*servers_[task.number], task.number);
    chief_.HearOfLoss();
    return true;
  }
  bool was_up = false;
  for (Actor* actor : ActorsIn(setup().ProcessOf(task))) {
    if (actor->is_up()) {
      actor->Crash();
      EndCallsOf(*actor);
      was_up = true;
    }
  }
  return was_up;
}

void World::EndCallsOf(const Actor& actor) {
  // Servers notice that the connection is closed, unless the link is cut.
  for (size_t i = 0; i < calls_.size(); ++i) {
    Call* call = calls_[i].get();
    if (call->from == actor.task() &&
        (call->state == Call::State::kWaits ||
         call->state == Call::State::kRuns) &&
        !IsCut(call->from, call->to)) {
      servers_[call->to.number]->Cancel(call);
    }
  }
}

void World::LoseCallsTo(const Server& server, int number) {
  for (const auto& call : calls_) {
    if (call->to.number == number && call->to_life == server.life()) {
      call->status = Unavailable();
      call->state = Call::State::kComesBack;
    }
  }
  // A step of the chief has a part on each server, so the chief hears of it.
  for (Call* call : std::vector<Call*>(chief_.pending())) {
    if (call->state == Call::State::kWaits) {
      servers_[call->to.number]->Cancel(call);
      call->status = Unavailable();
    } else if (call->state == Call::State::kOnItsWay) {
      chief_.Lose(call);
    }
  }
}

bool World::Restart(const Task& task) {
  if (task.job == Task::Job::kServer) {
    if (static_cast<size_t>(task.number) >= servers_.size() ||
        servers_[task.number]->is_up()) {
      return false;
    }
    servers_[task.number]->Restart();
    return true;
  }
  // The first actor of a process decides whether it may begin another life.
  const std::vector<Actor*> actors = ActorsIn(setup().ProcessOf(task));
  if (actors.empty() ||
      (actors[0] == &chief_ ? !chief_.MayRestart()
                            : actors[0]->is_up() && !actors[0]->is_over())) {
    return false;
  }
  for (Actor* actor : actors) {
    if (actor->is_up() && !actor->is_over()) {
      actor->Crash();
      EndCallsOf(*actor);
    }
    actor->Restart();
  }
  return true;
}

bool World::Pass(int64_t milliseconds) {
  const Time end = now_ + std::chrono::milliseconds(milliseconds);
  while (next_poll_ <= end && failure_.empty()) {
    now_ = std::max(now_, next_poll_);
    Poll();
    CheckErrors();
  }
  now_ = end;
  return true;
}

void World::Poll() {
  next_poll_ = Time::max();
  for (const auto& server : servers_) {
    next_poll_ = std::min(next_poll_, server->Poll());
  }
  if (next_poll_ != Time::max()) {
    // The gate may have a reason to be called again at once, but not for ever.
    next_poll_ = std::max(next_poll_, now_ + kTick);
  }
}

bool World::CancelWait(Call* call) {
  if (call == nullptr || call->state == Call::State::kOnItsWay ||
      IsCut(call->from, call->to)) {
    return false;
  }
  Server& server = *servers_[call->to.number];
  if (!server.is_up() || call->to_life != server.life()) {
    return false;
  }
  server.Cancel(call);
  return true;
}

bool World::ApplyToWorker(const Event& event) {
  if (static_cast<size_t>(event.task.number) >= workers_.size()) {
    return false;
  }
  Worker* worker = workers_[event.task.number].get();
  switch (event.kind) {
    case EventKind::kAbort:
      return worker->Abort();
    case EventKind::kAgain:
      return worker->Again();
    case EventKind::kReject:
      return worker->Reject();
    case EventKind::kLeave:
      return worker->Leave();
    case EventKind::kCancel:
      return CancelWait(worker->acquire());
    default:
      return false;
  }
}

bool World::ApplyToReader(const Event& event) {
  if (static_cast<size_t>(event.task.number) >= readers_.size()) {
    return false;
  }
  Reader* reader = readers_[event.task.number].get();
  switch (event.kind) {
    case EventKind::kAgain:
      return reader->Again();
    case EventKind::kCancel:
      return CancelWait(reader->question());
    default:
      return false;
  }
}

bool World::ApplyToChief(const Event& event) {
  switch (event.kind) {
    case EventKind::kFinish:
      return chief_.Finish();
    case EventKind::kFlush:
      return chief_.Flush();
    case EventKind::kGiveUp:
      return chief_.GiveUp();
    case EventKind::kHeartbeat:
      return chief_.Heartbeat();
    case EventKind::kClose:
      return chief_.CallBeside(chief_.NewCallBeside(CallKind::kClose));
    case EventKind::kFail:
      return chief_.CallBeside(chief_.NewCallBeside(CallKind::kFail));
    case EventKind::kConfigure: {
      Call call = chief_.NewCallBeside(CallKind::kConfigure);
      call.quorum = event.value;
      call.total = event.other.number;
      return call.quorum > 0 && call.total > 0 && chief_.CallBeside(call);
    }
    case EventKind::kPasses: {
      Call call = chief_.NewCallBeside(CallKind::kAddPasses);
      call.count = event.value;
      return chief_.CallBeside(call);
    }
    case EventKind::kFailUpdate:
      return chief_.FailUpdate();
    case EventKind::kSave:
      return has_queue() &&
             chief_.CallBeside(chief_.NewQueueCall(CallKind::kSave));
    case EventKind::kRestore: {
      Call call = chief_.NewQueueCall(CallKind::kRestore);
      call.saved = cluster_.saved_queue;
      return call.saved != nullptr && chief_.CallBeside(call);
    }
    case EventKind::kLimit: {
      Call call = chief_.NewQueueCall(CallKind::kLimit);
      call.count = event.value;
      return has_queue() && call.count >= WorkQueue::kNoLimit &&
             chief_.CallBeside(call);
    }
    case EventKind::kMaintain:
      return has_table() &&
             chief_.CallBeside(chief_.NewTableCall(CallKind::kMaintain));
    case EventKind::kSaveTable:
      return has_table() &&
             chief_.CallBeside(chief_.NewTableCall(CallKind::kSaveTable));
    case EventKind::kLoadTable: {
      Call call = chief_.NewTableCall(CallKind::kLoadTable);
      call.saved_table = cluster_.saved_table;
      return call.saved_table != nullptr && chief_.CallBeside(call);
    }
    default:
      return false;
  }
}

bool World::ApplyToLink(const Event& event) {
  const bool is_link =
      event.other.job == Task::Job::kServer &&
      static_cast<size_t>(event.other.number) < servers_.size() &&
      ActorOf(event.task) != nullptr;
  const Task process = setup().ProcessOf(event.task);
  const bool is_cut = is_link && IsCut(process, event.other);
  if (!is_link || is_cut == (event.kind == EventKind::kCut)) {
    return false;
  }
  if (event.kind == EventKind::kCut) {
    cuts_.emplace_back(process, event.other);
  } else if (event.kind == EventKind::kBreak) {
    return Break(event);
  } else {
    cuts_.erase(std::remove_if(cuts_.begin(), cuts_.end(),
                               [&](const auto& cut) {
                                 return cut.first == process &&
                                        cut.second == event.other;
                               }),
                cuts_.end());
  }
  return true;
}

void World::CheckErrors() {
  if (!twin_.error().empty()) {
    Fail(twin_.error());
  }
  for (const auto& server : servers_) {
    if (!server->error().empty()) {
      Fail(server->error());
    }
  }
}

std::string World::CheckReading() const {
  const QueueChecker& checker = queue()->checker();
  if (!checker.AllDone()) {
    return "not all items are read";
  }
  const Setup& setup = cluster_.setup;
  for (int64_t item = 0; item < setup.num_items; ++item) {
    for (int64_t epoch = 0; epoch < setup.num_epochs; ++epoch) {
      const auto found = cluster_.num_read.find({epoch, item});
      const int64_t num_read =
          found == cluster_.num_read.end() ? 0 : found->second;
      const bool is_once = checker.is_undisturbed() && !queue_was_lost();
      if (num_read == 0 || (is_once && num_read > 1)) {
        return "item " + std::to_string(item) + " of epoch " +
               std::to_string(epoch) + " is read " + std::to_string(num_read) +
               " times";
      }
    }
  }
  return "";
}

void World::Say(const std::string& what) {
  if (!trace_) {
    return;
  }
  if (!event_.empty()) {
    trace_(event_);
    event_.clear();
  }
  if (!what.empty()) {
    trace_(what);
  }
}

void World::Digest(const Event& event) {
  const SyncGateStats stats =
      servers_[0]->is_up() ? servers_[0]->gate()->Stats() : SyncGateStats();
  const WorkQueueStats read =
      queue() != nullptr ? queue()->Stats() : WorkQueueStats();
  const DynamicTable::Counts rows = servers_.back()->table() != nullptr
                                        ? servers_.back()->table()->Counts()
                                        : DynamicTable::Counts();
  for (const int64_t part :
       {static_cast<int64_t>(event.kind), now_.count(), stats.round,
        stats.admitted, stats.committed, stats.late, stats.stale,
        read.handed_out, read.done, read.given_back, read.late, rows.in_use,
        rows.admitted, rows.evicted, rows.dropped,
        static_cast<int64_t>(calls_.size())}) {
    digest_ = (digest_ ^ static_cast<uint64_t>(part)) * 0x100000001b3;
    digest_ ^= digest_ >> 31;
  }
}

}  // namespace tf_syncrep::simulator
