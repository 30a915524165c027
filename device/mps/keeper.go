// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
	"github.com/nomad-gpu/nomad-gpu/internal/procs"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// intervals are how often a keeper does what.
type intervals struct {
	// alive is between looks whether the process lives, answer between questions
	// to it, and retry before another attempt to start it, which becomes rarer up
	// to maxRetry while attempts fail.
	alive, answer, retry, maxRetry time.Duration
	// maxFailures is how many questions in a row may stay without an answer before
	// the daemon is not ready. Slow is not dead: on a busy machine a question or
	// two take long, and every task of the GPU depends on the daemon.
	maxFailures int
}

// keeper keeps the daemon of one device running.
type keeper struct {
	log       hclog.Logger
	control   control
	intervals intervals
	now       func() time.Time
	changed   func()
	// speaks is how the daemon that lives is spoken to; only run's goroutine uses it.
	speaks dialect

	mu     sync.Mutex
	spec   Spec
	status Status
	daemon daemonRecord
	// downSince is when the daemon ceased to be ready, emptyAt the last moment
	// known at which no task was on the device.
	downSince, emptyAt time.Time
	// ended is why the last daemon is gone, unanswered how many attempts in a row to
	// adopt the daemon brought no answer, gate the process before the daemon, health
	// what its server was seen to do; only run's goroutine uses them.
	ended      string
	unanswered int
	gate       process
	health     serverHealth
	// tenant finds out which task of another driver a process is of; nil where that is not known.
	// seen is when each namespace was first seen.
	tenant TenantFinder
	seen   map[string]time.Time
	// ungated is set while the gate does not know the daemon's protocol.
	ungated bool
	// protocol is the one that the daemon is to have.
	protocol protocolChoice
	// replacing is set when a daemon is to go that is not as one is started now.
	replacing bool
	cancel    context.CancelFunc
	done      chan struct{}
	// reload is signalled when other limits are wanted.
	reload chan struct{}
	// ask is signalled when the daemon is to be asked before its time.
	ask chan struct{}
	// empty brings moments at which no task was on the device.
	empty chan time.Time
}

// daemonRecord is what a keeper leaves to the next one: who the daemon is.
type daemonRecord struct {
	Version    int     `json:"version"`
	Process    process `json:"process"`
	Generation int64   `json:"generation"`
	// StartedAt is when the generation began, LastEnd why the one before ended.
	StartedAt time.Time `json:"started_at,omitzero"`
	LastEnd   string    `json:"last_end,omitempty"`
	// Own are the daemon's files in its shared memory.
	Own []string `json:"own,omitempty"`
	// Server is the process ID of the server that has the partitions of a daemon which
	// makes some.
	Server int `json:"server,omitempty"`
}

func (k *keeper) recordPath() string { return filepath.Join(k.control.dirs.base, "daemon.json") }

// run keeps the daemon until the context ends; the daemon goes on.
func (k *keeper) run(ctx context.Context) {
	defer close(k.done)
	pause := k.intervals.retry
	for ctx.Err() == nil {
		err := k.acquire(ctx)
		if err == nil {
			pause, k.unanswered = k.intervals.retry, 0
			err = k.watch(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		k.markNotReady(err)
		select {
		case <-ctx.Done():
		case <-k.reload:
			pause = k.intervals.retry
		case <-time.After(pause):
			pause = min(2*pause, k.intervals.maxRetry)
		}
	}
}

// acquire adopts the daemon that lives, or starts one, and gives it and its
// server their limits.
func (k *keeper) acquire(ctx context.Context) error {
	if err := k.control.dirs.make(); err != nil {
		return err
	}
	if err := k.chooseProtocol(ctx); err != nil {
		return err
	}
	found, err := k.locate()
	if err != nil && !errors.Is(err, procs.ErrGone) {
		return k.replaceIfEmpty(err)
	}
	if err := k.control.limitShm(found); err != nil {
		return err
	}
	var strange []string
	if err != nil {
		if err := k.clearLeftovers(); err != nil {
			return err
		}
		strange = k.control.dirs.shmNames()
		k.log.Info("starting MPS control daemon", "device", k.control.uuid)
		if found, err = k.control.start(ctx, k.dialectOf(k.protocol.wanted)); err != nil {
			return err
		}
	}
	k.control.partitioned = staticDaemon(found.PID)
	k.speaks = k.dialectOf(protocolOf(found.PID))
	if err := k.openGate(ctx); err != nil {
		return err
	}
	k.separate(ctx, found, k.gate)
	fresh := k.readRecord().Process != found
	daemon, err := k.remember(found, strange)
	if err != nil {
		return err
	}
	spec := k.wanted()
	can, err := k.speaks.prepare(ctx, spec)
	if err != nil {
		return k.replaceIfEmpty(err)
	}
	if err := k.testGate(can, fresh); err != nil {
		return err
	}
	if can.partitioning, err = k.partitioning(ctx, &daemon, can.server); err != nil {
		return k.replaceIfEmpty(err)
	}
	k.markReady(daemon, spec, can)
	return nil
}

// testGate tries the gate's way to each new daemon, and to one whose way was not known. A
// missing answer proves nothing, and MPS v3 takes programs of tasks alone.
func (k *keeper) testGate(can features, fresh bool) error {
	if !fresh && !k.ungated || can.protocol == ProtocolV3 {
		return nil
	}
	err := k.control.testGate(can.server)
	var unknown *actionError
	if k.ungated = errors.As(err, &unknown); k.ungated {
		return err
	}
	if err != nil {
		k.log.Warn("a program that was introduced to the MPS control daemon did not reach its server", "device", k.control.uuid, "error", err)
	}
	return nil
}

// separate moves processes out of Nomad's service, into one scope where none is in
// one yet.
func (k *keeper) separate(ctx context.Context, all ...process) {
	for i, p := range all {
		if p == (process{}) {
			continue // there is no gate
		}
		if err := k.control.separate(ctx, p, all[i+1:]...); err != nil {
			k.log.Warn("MPS stays in the control group of Nomad's service and ends with it, unless the service has KillMode=process",
				"device", k.control.uuid, "pid", p.PID, "error", err)
		}
	}
}

// replaceIfEmpty ends a daemon that does not answer time and again, if no task can
// lose by that, so that the next attempt starts a new one. It returns why the daemon
// is not ready. On a busy machine the next daemon would be as slow.
func (k *keeper) replaceIfEmpty(err error) error {
	if !errors.Is(err, mpsctl.ErrTimeout) && !errors.Is(err, errBusy) {
		k.unanswered = 0
		return err
	}
	k.unanswered++
	if !k.deviceEmpty() {
		return &actionError{reason: err.Error(), action: "it is replaced when no task is on the device any more"}
	}
	if k.unanswered < k.intervals.maxFailures {
		return err
	}
	k.log.Warn("MPS control daemon does not answer and no task is there, replacing it", "device", k.control.uuid)
	k.unanswered = 0
	k.ended = "it did not answer and was replaced"
	if problem := k.control.endLeftovers(k.log); problem != nil {
		return problem
	}
	return err
}

// deviceEmpty reports whether no task is on the device: none was at a moment when
// the daemon was not ready any more, and since then none can have started.
func (k *keeper) deviceEmpty() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.status.Ready && !k.downSince.IsZero() && k.emptyAt.After(k.downSince)
}

// remember writes down who the daemon is. A daemon that the record does not
// know is of a new generation. The files in its shared memory by now are its
// own, but for the strange names, which lay there before it.
func (k *keeper) remember(p process, strange []string) (daemonRecord, error) {
	record := k.readRecord()
	if record.Process == p && record.Generation > 0 {
		return record, nil
	}
	ended := k.ended
	switch {
	case ended != "" || record.Generation == 0:
	case k.current().Generation > 0:
		ended = "it ended"
	default:
		ended = "it ended while no plugin looked after it"
	}
	k.ended = ""
	own := slices.DeleteFunc(k.control.dirs.shmNames(), func(name string) bool { return slices.Contains(strange, name) })
	record = daemonRecord{Version: 1, Process: p, Generation: max(record.Generation+1, k.Status().Generation+1), Own: own,
		StartedAt: k.now().UTC().Truncate(time.Second), LastEnd: ended}
	return record, k.writeRecord(record)
}

func (k *keeper) writeRecord(record daemonRecord) error {
	text, err := json.Marshal(record)
	if err != nil {
		return fmt.Errorf("encode MPS daemon record: %w", err)
	}
	return statedir.WriteFile(k.recordPath(), text, 0o600)
}

func (k *keeper) readRecord() daemonRecord {
	var record daemonRecord
	if text, err := os.ReadFile(k.recordPath()); err == nil {
		_ = json.Unmarshal(text, &record) // an unreadable record is an unknown daemon
	}
	return record
}

// watch returns when the daemon has died or cannot be trusted.
func (k *keeper) watch(ctx context.Context) error {
	alive, answer := time.NewTicker(k.intervals.alive), time.NewTicker(k.intervals.answer)
	defer alive.Stop()
	defer answer.Stop()
	guarded, end := context.WithCancel(ctx)
	var guard sync.WaitGroup
	guard.Go(func() {
		if err := k.guardShm(guarded); err != nil {
			k.log.Warn("the mode of shared memory is restored each time that the daemon is asked only", "device", k.control.uuid, "error", err)
		}
	})
	defer guard.Wait()
	defer end()
	failures, err := 0, error(nil)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-alive.C:
			if !k.process().Alive() {
				k.log.Warn("MPS control daemon died", "device", k.control.uuid, "pid", k.process().PID)
				k.ended = "it died"
				return errors.New("it died and is being started again")
			}
			if !k.gate.Alive() {
				if err := k.openGate(ctx); err != nil {
					return err
				}
			}
			k.placeTenants(ctx)
		case moment := <-k.empty:
			k.sweep(moment)
			if err := k.outdated(); err != nil {
				k.replacing = true
				return err
			}
		case <-k.reload:
			if !k.Status().Ready {
				return errOtherLimits
			}
		case <-answer.C:
			if failures, err = k.question(ctx, failures); err != nil {
				return err
			}
		case <-k.ask:
			if failures, err = k.question(ctx, failures); err != nil {
				return err
			}
		}
	}
}

// question asks the daemon whether all is as it was left, and returns how many questions in
// a row had no answer.
func (k *keeper) question(ctx context.Context, failures int) (int, error) {
	// Host tasks that are root can change the modes of files that they see.
	err := k.control.dirs.make()
	if err == nil {
		_, err = k.control.dirs.restoreShm()
	}
	if err == nil {
		err = k.openGate(ctx)
	}
	if err == nil {
		err = k.speaks.confirm(ctx, k.wanted(), k.current().Server)
	}
	if ctx.Err() != nil {
		return failures, ctx.Err()
	}
	if err == nil {
		err = k.keepNamespaces(ctx)
	}
	if err := k.control.dirs.boundLogs(); err != nil {
		k.log.Warn("cannot truncate the logs of MPS", "device", k.control.uuid, "error", err)
	}
	return k.onProbe(failures, err)
}

// sweep removes what tasks left in the daemon's shared memory. The host's is
// not the daemon's to sweep.
func (k *keeper) sweep(empty time.Time) {
	if k.control.hostShm {
		return
	}
	if err := k.control.dirs.sweepShm(k.readRecord().Own, empty); err != nil {
		k.log.Warn("cannot remove what tasks left in shared memory", "device", k.control.uuid, "error", err)
	}
}

// onProbe decides what an answer means: an untrue one ends the trust at once, and
// so does a daemon that went on too long without any.
func (k *keeper) onProbe(failures int, err error) (int, error) {
	if !errors.Is(err, mpsctl.ErrTimeout) {
		return 0, err
	}
	if failures++; failures < k.intervals.maxFailures {
		k.log.Warn("MPS control daemon is slow", "device", k.control.uuid, "questions", failures)
		return failures, nil
	}
	return failures, err
}

// stop ends the keeper, and the daemon too if it is no longer needed.
func (k *keeper) stop(endDaemon bool) {
	k.cancel()
	<-k.done
	if endDaemon {
		k.control.end(k.log)
	}
}

// Status is how the daemon is now.
func (k *keeper) Status() Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.status
}

func (k *keeper) process() process { return k.current().Process }

func (k *keeper) current() daemonRecord {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.daemon
}

func (k *keeper) wanted() Spec {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.spec
}

var errOtherLimits = errors.New("it is being given other limits")

// want changes the limits. The daemon is not ready until it has confirmed them.
func (k *keeper) want(s Spec) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !s.EmptyAt.IsZero() {
		k.emptyAt = s.EmptyAt
		select {
		case k.empty <- s.EmptyAt:
		default: // an earlier moment is not dealt with yet, the next will come
		}
	}
	if k.spec.sameLimits(s) {
		k.spec.Members, k.spec.MembersAt = s.Members, s.MembersAt
		return
	}
	k.spec = s
	if k.status.Ready {
		k.setNotReady(errOtherLimits)
	}
	select {
	case k.reload <- struct{}{}:
	default:
	}
}

// markReady notes that a daemon and its server have confirmed their limits,
// unless others are wanted by now: then want has asked for another attempt.
func (k *keeper) markReady(d daemonRecord, confirmed Spec, f features) {
	k.mu.Lock()
	k.daemon = d
	if !k.spec.sameLimits(confirmed) {
		k.mu.Unlock()
		return
	}
	k.status.Ready, k.status.Reason, k.status.Action, k.status.Since = true, "", "", time.Time{}
	k.status.Generation, k.status.StartedAt, k.status.LastEnd = d.Generation, d.StartedAt, d.LastEnd
	k.status.PID, k.status.Settled = d.Process.PID, true
	k.status.ControlDir = k.control.dirs.own
	k.status.Server, k.status.MultiUser, k.status.Priorities = ServerActive, f.multiUser, f.priorities
	k.status.Partitioning = f.partitioning
	k.status.Protocol, k.status.Multiprocessors = max(f.protocol, ProtocolV2), f.multiprocessors
	k.status.ProtocolReason = k.protocol.reason
	if k.status.Protocol != k.protocol.wanted {
		k.status.ProtocolReason = "tasks are on the device, which keeps its daemon until it is empty"
	}
	k.mu.Unlock()
	k.changed()
}

func (k *keeper) markNotReady(err error) {
	k.mu.Lock()
	changed := k.status.Ready || k.status.Reason != err.Error()
	k.setNotReady(err)
	k.mu.Unlock()
	if changed {
		k.log.Warn("MPS control daemon is not ready", "device", k.control.uuid, "reason", err)
		k.changed()
	}
}

// setNotReady takes the readiness away. The caller holds mu.
func (k *keeper) setNotReady(err error) {
	k.status.Settled = true
	if k.status.Ready || k.status.Since.IsZero() {
		k.downSince = k.now()
		k.status.Since = k.downSince.Truncate(time.Second)
	}
	k.status.Ready, k.status.Reason, k.status.PID = false, err.Error(), 0
	k.status.Action, k.status.Server, k.status.Culprit = "", "", 0
	var advice *actionError
	if errors.As(err, &advice) {
		k.status.Action = advice.action
	}
	var server *serverError
	if errors.As(err, &server) {
		k.status.Server, k.status.Culprit = server.state, server.culprit
	}
}
