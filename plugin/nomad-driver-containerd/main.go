// Command nomad-driver-containerd is a Nomad task driver plugin that runs
// containers with containerd. Nomad starts it; it is not run by hand.
package main

import (
	"context"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins"

	"github.com/nomad-gpu/nomad-gpu/driver"
)

func main() {
	plugins.ServeCtx(func(ctx context.Context, logger hclog.Logger) any { return driver.New(ctx, logger) })
}
