// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	versionapi "github.com/containerd/containerd/api/services/version/v1"
	"github.com/containerd/containerd/v2/client"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
)

// A containerd that is late says nothing of its health, one that is gone does: the two
// must not be taken for each other on a busy machine.
func TestFingerprintTellsLateFromGone(t *testing.T) {
	forEachOwnContainerd(t, func(t *testing.T, e *env) {
		process := e.containerd.cmd.cmd.Process
		must.NoError(t, process.Signal(unix.SIGSTOP))
		// The signal only begins it: its threads stop one after the other.
		must.NoError(t, unix.Waitid(unix.P_PID, process.Pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil))
		_, answered := e.driver.fingerprint(t.Context())
		must.NoError(t, process.Signal(unix.SIGCONT))
		must.False(t, answered, must.Sprint("a containerd that is held up has answered"))

		e.containerd.kill()
		f, answered := e.driver.fingerprint(t.Context())
		must.True(t, answered)
		must.Eq(t, drivers.HealthStateUnhealthy, f.Health)
		e.containerd.start(t)
	})
}

// A question about snapshotters that stays without an answer says nothing of the
// configuration either.
func TestFingerprintTakesALateAnswerForNoMistake(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		late := e.with(func(c *config.Config) { c.Socket, c.Snapshotter = lateContainerd(t, e.config.Socket), "overlayfs" })
		f, answered := late.driver.fingerprint(t.Context())
		must.False(t, answered, must.Sprint(f.HealthDescription))
		must.StrNotContains(t, f.HealthDescription, "plugin config")
	})
}

// lateContainerd is a socket at which a containerd says its version, and all else comes
// too late: what a machine does that became busy in between.
func lateContainerd(t *testing.T, socket string) string {
	t.Helper()
	original, err := client.New(socket)
	must.NoError(t, err)
	t.Cleanup(func() { original.Close() })
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
		return status.Error(codes.DeadlineExceeded, "context deadline exceeded")
	}))
	versionapi.RegisterVersionServer(server, onlyVersion{of: original})
	path := filepath.Join(t.TempDir(), "late.sock")
	listener, err := net.Listen("unix", path)
	must.NoError(t, err)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	return path
}

type onlyVersion struct {
	versionapi.UnimplementedVersionServer
	of *client.Client
}

func (v onlyVersion) Version(ctx context.Context, _ *emptypb.Empty) (*versionapi.VersionResponse, error) {
	said, err := v.of.Version(ctx)
	return &versionapi.VersionResponse{Version: said.Version, Revision: said.Revision}, err
}
