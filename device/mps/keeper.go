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

	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// pace is how often a keeper does what.
type pace struct {
	// alive is between looks whether the process lives, answer between questions
	// to it, and retry before another attempt to start it.
	alive, answer, retry time.Duration
	// patience is how many questions in a row may stay without an answer before
	// the daemon is replaced.
	patience int
}

// keeper keeps the daemon of one device running.
type keeper struct {
	log     hclog.Logger
	control control
	pace    pace
	now     func() time.Time
	changed func()

	mu     sync.Mutex
	spec   Spec
	status Status
	daemon daemonRecord
	// ended is why the last daemon is gone; only run's goroutine uses it.
	ended  string
	cancel context.CancelFunc
	done   chan struct{}
	// rethink is signalled when other limits are wanted.
	rethink chan struct{}
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
}

func (k *keeper) recordPath() string { return filepath.Join(k.control.dirs.base, "daemon.json") }

// run keeps the daemon until the context ends; the daemon goes on.
func (k *keeper) run(ctx context.Context) {
	defer close(k.done)
	for ctx.Err() == nil {
		err := k.acquire(ctx)
		if err == nil {
			err = k.watch(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		k.notReady(err)
		select {
		case <-ctx.Done():
		case <-time.After(k.pace.retry):
		}
	}
}

// acquire adopts the daemon that lives, or starts one, and gives it its limits.
func (k *keeper) acquire(ctx context.Context) error {
	if err := k.control.dirs.make(); err != nil {
		return err
	}
	found, err := k.control.find()
	if err := k.control.limitShm(found); err != nil {
		return err
	}
	var strange []string
	if err != nil {
		strange = k.control.dirs.shmNames()
		if found, err = k.begin(ctx); err != nil {
			return err
		}
	}
	if err := k.control.separate(ctx, found); err != nil {
		k.log.Warn("MPS control daemon stays in the control group of Nomad's service and ends with it, unless the service has KillMode=process",
			"device", k.control.uuid, "pid", found.PID, "error", err)
	}
	daemon, err := k.remember(found, strange)
	if err != nil {
		return err
	}
	spec := k.wanted()
	if err := k.control.confirm(ctx, spec); err != nil {
		if err := k.control.setLimits(ctx, spec); err != nil {
			k.replaceIfStuck(found, err)
			return err
		}
	}
	k.ready(daemon, spec)
	return nil
}

// begin starts a daemon and waits for its PID file.
func (k *keeper) begin(ctx context.Context) (process, error) {
	k.log.Info("starting MPS control daemon", "device", k.control.uuid)
	if err := k.control.start(ctx); err != nil {
		return process{}, err
	}
	found, err := k.control.find()
	if err != nil {
		return process{}, fmt.Errorf("MPS control daemon did not stay: %w", err)
	}
	return found, nil
}

// replaceIfStuck ends a daemon that does not answer, so that the next attempt
// starts a new one.
func (k *keeper) replaceIfStuck(p process, err error) {
	if errors.Is(err, errTimeout) {
		k.log.Warn("MPS control daemon does not answer, replacing it", "device", k.control.uuid, "pid", p.PID)
		k.ended = "it did not answer and was replaced"
		p.kill()
	}
}

// remember writes down who the daemon is. A daemon that the record does not
// know is of a new generation. What it has in its shared memory by now is its
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
	text, err := json.Marshal(record)
	if err != nil {
		return record, fmt.Errorf("encode MPS daemon record: %w", err)
	}
	return record, statedir.WriteFile(k.recordPath(), text, 0o600)
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
	alive, answer := time.NewTicker(k.pace.alive), time.NewTicker(k.pace.answer)
	defer alive.Stop()
	defer answer.Stop()
	failures := 0
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-alive.C:
			if !k.process().alive() {
				k.log.Warn("MPS control daemon died", "device", k.control.uuid, "pid", k.process().PID)
				k.ended = "it died"
				return errors.New("it died and is being started again")
			}
		case moment := <-k.empty:
			k.sweep(moment)
		case <-k.rethink:
			if !k.Status().Ready {
				return errOtherLimits
			}
		case <-answer.C:
			spec := k.wanted()
			err := k.control.confirm(ctx, spec)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			failures, err = k.judge(failures, spec, err)
			if err != nil {
				return err
			}
		}
	}
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

// judge decides what an answer means: an untrue one ends the trust at once, a
// missing one takes readiness away at once and the daemon's life after a while.
func (k *keeper) judge(failures int, asked Spec, err error) (int, error) {
	switch {
	case err == nil:
		if failures > 0 {
			k.ready(k.current(), asked)
		}
		return 0, nil
	case errors.Is(err, errUntrue):
		return 0, err
	}
	k.notReady(err)
	if failures+1 >= k.pace.patience {
		k.replaceIfStuck(k.process(), errTimeout)
		return 0, err
	}
	return failures + 1, nil
}

// stop ends the keeper, and the daemon too if nobody needs it any more.
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
		select {
		case k.empty <- s.EmptyAt:
		default: // an earlier moment is not dealt with yet, the next will come
		}
	}
	if k.spec.sameLimits(s) {
		return
	}
	k.spec = s
	if k.status.Ready {
		k.withdraw(errOtherLimits)
	}
	select {
	case k.rethink <- struct{}{}:
	default:
	}
}

// ready notes that a daemon has confirmed its limits, unless others are wanted by
// now: then want has asked for another attempt.
func (k *keeper) ready(d daemonRecord, confirmed Spec) {
	k.mu.Lock()
	k.daemon = d
	if !k.spec.sameLimits(confirmed) {
		k.mu.Unlock()
		return
	}
	k.status.Ready, k.status.Reason, k.status.Since = true, "", time.Time{}
	k.status.Generation, k.status.StartedAt, k.status.LastEnd = d.Generation, d.StartedAt, d.LastEnd
	k.status.PID, k.status.Settled = d.Process.PID, true
	k.mu.Unlock()
	k.changed()
}

func (k *keeper) notReady(err error) {
	k.mu.Lock()
	changed := k.status.Ready || k.status.Reason != err.Error()
	k.withdraw(err)
	k.mu.Unlock()
	if changed {
		k.log.Warn("MPS control daemon is not ready", "device", k.control.uuid, "reason", err)
		k.changed()
	}
}

// withdraw takes the readiness away. The caller holds mu.
func (k *keeper) withdraw(err error) {
	k.status.Settled = true
	if k.status.Ready || k.status.Since.IsZero() {
		k.status.Since = k.now().Truncate(time.Second)
	}
	k.status.Ready, k.status.Reason, k.status.PID = false, err.Error(), 0
}
