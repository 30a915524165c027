// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
)

// legacy is MPS v2: commands on the control program's standard input, limits of the
// daemon and of its one server.
type legacy struct {
	control
	log    hclog.Logger
	now    func() time.Time
	health *serverHealth
}

func (k *keeper) legacy() legacy { return legacy{k.control, k.log, k.now, &k.health} }

func (l legacy) options() ([][]string, error) {
	all := [][]string{{"-d"}}
	if l.multiUser {
		all = nil
		for _, flag := range multiUserFlags {
			all = append(all, []string{"-d", flag})
		}
		// Drivers that know none of them serve one user at a time.
		all = append(all, []string{"-d"})
	}
	if l.static {
		for i := range all {
			all[i] = append(all[i], staticFlag)
		}
	}
	return all, mpsctl.PlacesOf(l.dirs.own).End()
}

func (l legacy) prepare(ctx context.Context, spec Spec) (can features, err error) {
	if can.server, err = l.limit(ctx, spec); err != nil {
		return can, err
	}
	can.multiUser = multiUserServer(can.server)
	can.priorities, err = l.knows(ctx, "get_default_client_priority")
	return can, err
}

// limit gives the daemon its limits, starts a missing server, and gives that its limits too. It returns the server that takes clients.
func (l legacy) limit(ctx context.Context, spec Spec) (int, error) {
	if err := l.confirmLimits(ctx, daemonLimits, spec); err != nil {
		if err := l.setLimits(ctx, daemonLimits, spec); err != nil {
			return 0, err
		}
	}
	server, err := l.server(ctx)
	if err != nil {
		return 0, err
	}
	return server, l.judge(ctx, server, func(quiet int64) error {
		if err := l.awaitClients(ctx, server, quiet, l.state); err != nil {
			return err
		}
		limits := serverLimits(server)
		err := l.confirmLimits(ctx, limits, spec)
		if err == nil || errors.Is(err, mpsctl.ErrNoServer) {
			return err
		}
		if err := l.setLimits(ctx, limits, spec); err != nil {
			return err
		}
		l.log.Info("the running MPS server has other limits now; programs that it serves already keep theirs", "device", l.uuid, "server", server)
		return nil
	})
}

// confirm asks whether all is as prepare left it.
func (l legacy) confirm(ctx context.Context, spec Spec, known int) error {
	if err := l.confirmLimits(ctx, daemonLimits, spec); err != nil {
		return err
	}
	servers, err := l.Servers(ctx)
	if err != nil {
		return err
	}
	if len(servers) == 0 {
		return errServerEnded
	}
	server := servers[len(servers)-1]
	return l.judge(ctx, server, func(quiet int64) error {
		if err := l.takesClients(ctx, server, quiet, l.state); err != nil {
			return err
		}
		if known != 0 && known != server {
			return errPartitionsLost
		}
		return l.confirmLimits(ctx, serverLimits(server), spec)
	})
}
