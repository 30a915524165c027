// SPDX-License-Identifier: MPL-2.0

package config

import (
	"fmt"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// suspend reads the rules of devices whose tasks step aside for each other.
func (p *parser) suspend(raw *rawSuspend) *gpu.SeatRules {
	if raw == nil {
		return nil
	}
	r := &gpu.SeatRules{
		IdleMS:    p.duration("suspend.idle", raw.Idle, time.Second).Milliseconds(),
		MinTurnMS: p.duration("suspend.min_turn", raw.MinTurn, time.Second).Milliseconds(),
		MaxWaitMS: p.duration("suspend.max_wait", raw.MaxWait, time.Second).Milliseconds(),
	}
	const mostMiB = 64 << 20
	host := &r.HostMemoryMiB
	if mib, err := gpu.ParseMemory(raw.HostMemory); err != nil {
		p.fail("suspend.host_memory: %w", err)
	} else {
		p.number("suspend.host_memory (MiB)", &mib, host, 1, mostMiB)
	}
	p.amount("suspend.headroom", &raw.Headroom, &r.HeadroomMiB)
	p.number("suspend.max_switching", raw.MaxSwitching, &r.SwitchPercent, 1, 50)
	priority := int64(0)
	p.number("suspend.max_priority", raw.MaxPriority, &priority, gpu.MinSeatPriority, gpu.MaxSeatPriority)
	r.MaxPriority = int(priority)
	r.Unsuspendable = p.oneOf("suspend.unsuspendable", raw.Unsuspendable, gpu.UnsuspendableKeep, gpu.UnsuspendableRefuse)
	return r
}

// checkSuspend finds devices that are to be shared by suspension and cannot.
func (p *parser) checkSuspend(fallback Sharing, rules []Rule, seats *gpu.SeatRules) {
	check := func(key string, o Sharing) {
		switch {
		case o.Mechanism != gpu.SharingSuspend:
		case o.Mode != gpu.ModeShared:
			p.fail("%ssharing \"suspend\" is for mode \"shared\", the mode is %q", key, o.Mode)
		case seats == nil:
			p.fail("%ssharing \"suspend\" needs the block suspend { host_memory = \"256GiB\" }: how much of the host's memory suspended tasks may take", key)
		}
	}
	check("", fallback)
	for i, r := range rules {
		if r.Sharing != fallback {
			check(fmt.Sprintf("gpu[%d].", i), r.Sharing)
		}
		for n, m := range r.instances {
			if m.sharing.Mechanism == gpu.SharingSuspend {
				p.fail("gpu[%d].mig[%d].sharing \"suspend\": CUDA cannot suspend programs on MIG instances; write timeslice, mps or none", i, n)
			}
		}
	}
}
