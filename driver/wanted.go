// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"fmt"
	"time"

	hclog "github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/proto"
	"google.golang.org/grpc"

	"github.com/nomad-gpu/nomad-gpu/internal/clientstate"
)

// wantedPeriod is how often the driver looks whether Nomad still wants the tasks
// being started. Most starts are over before that.
const wantedPeriod = time.Second

// wantedLoop ends the starts that are no longer wanted, until the driver ends.
func (d *Driver) wantedLoop() {
	path, told := "", false
	for pause(d.ctx, wantedPeriod) {
		starting := d.starts.since(time.Now().Add(-wantedPeriod))
		if len(starting) == 0 {
			continue
		}
		var err error
		if path == "" { // it stays the same for the clients that take this process over
			path, err = clientstate.Find(d.client)
		}
		if err == nil {
			err = endUnwanted(path, starting)
		}
		if err != nil && !told {
			d.logger.Warn("a start is not ended when its job is stopped; it ends with the operator's time limits", "error", err)
		}
		told = err != nil
	}
}

// endUnwanted cancels the starts whose task is to end, as Nomad's client wrote down.
func endUnwanted(path string, starting []*startInFlight) error {
	view, err := clientstate.Read(path)
	if err != nil {
		return err
	}
	defer view.Close()
	for _, s := range starting {
		reason, err := view.Unwanted(s.alloc, s.task)
		if err != nil {
			return err
		}
		if reason != "" {
			s.cancel(fmt.Errorf("%w: %s", errStartStopped, reason))
		}
	}
	return nil
}

// Serve serves the driver to Nomad as Nomad's own function does, and beside that ends a
// start whose client has gone: the next client asks for it again.
func Serve(d *Driver, logger hclog.Logger) {
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: base.Handshake,
		Plugins: map[string]plugin.Plugin{
			base.PluginTypeBase:   &base.PluginBase{Impl: d},
			base.PluginTypeDriver: drivers.NewDriverPlugin(d, logger),
		},
		GRPCServer: func(options []grpc.ServerOption) *grpc.Server {
			return plugin.DefaultGRPCServer(append(options, grpc.UnaryInterceptor(d.noteCaller)))
		},
		Logger: logger,
	})
}

// noteCaller keeps the context of a request for a start, which Nomad's code does not pass
// on to the driver.
func (d *Driver) noteCaller(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if start, ok := request.(*proto.StartTaskRequest); ok {
		defer d.starts.calledBy(ctx, start.GetTask().GetId())()
	}
	return handle(ctx, request)
}
