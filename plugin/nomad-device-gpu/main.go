// Command nomad-device-gpu is Nomad's device plugin for GPUs, and the tool with
// which an operator looks at what it does.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins"

	"github.com/nomad-gpu/nomad-gpu/device"
	"github.com/nomad-gpu/nomad-gpu/device/mps"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == mps.ExecCommand {
		fmt.Fprintln(os.Stderr, mps.Exec(os.Args[2:], os.Environ()))
		os.Exit(1)
	}
	plugins.ServeCtx(func(ctx context.Context, log hclog.Logger) any { return device.NewPlugin(ctx, log) })
}
