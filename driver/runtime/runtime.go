// SPDX-License-Identifier: MPL-2.0

// Package runtime is the only part of the driver that speaks to containerd. It
// turns containerd's client into the few nouns that the driver needs: an Image,
// a Container, and the Exit of one.
//
// A Runtime keeps nothing in memory about containers: what exists is what
// containerd says, found by label. It may be used by several goroutines, and
// containerd may come and go behind it.
package runtime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content/proxy"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nomad-gpu/nomad-gpu/driver/places"
)

// Config says which containerd to use, and how.
type Config struct {
	// Socket is the path of containerd's socket.
	Socket string
	// Namespace is the containerd namespace that everything is kept in.
	Namespace string
	// Owner names the driver among those that use this containerd, for good.
	Owner string
	// Snapshotter is used where a task names none; empty for containerd's own
	// default.
	Snapshotter string
	// HostsDir holds registry settings in containerd's form (certs.d).
	HostsDir string
	// Log receives what containerd's client library logs; nil for nowhere.
	Log io.Writer
	// FIFODir is where the pipes of exec sessions are made.
	FIFODir string
	// MaxImageBytes is how much of an image is fetched or read; 0 for no limit.
	MaxImageBytes int64
	// MaxUnpackedBytes is how much the layers of an image that are unpacked for a start
	// may take; 0 for no limit.
	MaxUnpackedBytes int64
}

// Runtime is one containerd namespace.
type Runtime struct {
	config Config
	log    *logrus.Entry
	client *client.Client
	pulls  pullGroup
	// held are the IDs of the containerd leases that this process uses now.
	held    sync.Map
	configs configs
	// unpacks are the places of layers that are read in this process; many takes one whose
	// names need more memory than the others have.
	unpacks *places.Places
	many    chan struct{}
}

// A containerd that is away is looked for after the first pause, and then after longer
// ones: it is on this machine, and a restart takes it less than a second. The longest
// pause bounds how long the connection stays down after containerd has come back.
const (
	firstPause   = 50 * time.Millisecond
	longestPause = 2 * time.Second
)

// New makes a Runtime. It does not need containerd to be there yet.
func New(config Config) (*Runtime, error) {
	r, store := &Runtime{config: config, unpacks: places.New(maxUnpacks), many: make(chan struct{}, 1)}, &ownIngests{}
	pauses := backoff.Config{BaseDelay: firstPause, Multiplier: 1.6, Jitter: 0.2, MaxDelay: longestPause}
	c, err := client.New(config.Socket, client.WithDefaultNamespace(config.Namespace), client.WithTimeout(longestPause),
		client.WithExtraDialOpts([]grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{Backoff: pauses, MinConnectTimeout: longestPause})}),
		client.WithServices(client.WithDiffService(unpacker{r}), client.WithContentStore(store)))
	if err != nil {
		return nil, fmt.Errorf("connect to containerd at %s: %w", config.Socket, err)
	}
	store.Store = proxy.NewContentStore(c.Conn())
	logger := logrus.New()
	logger.SetOutput(config.Log)
	if config.Log == nil {
		logger.SetOutput(io.Discard)
	}
	r.client, r.log = c, logrus.NewEntry(logger)
	return r, nil
}

// Close ends the connection; what runs goes on.
func (r *Runtime) Close() error { return r.client.Close() }

// Version asks containerd for its version, and so whether it is there.
func (r *Runtime) Version(ctx context.Context) (string, error) {
	version, err := r.client.Version(ctx)
	if err != nil {
		return "", fmt.Errorf("ask containerd at %s for its version: %w", r.config.Socket, err)
	}
	return version.Version, nil
}

// Snapshotters names the snapshotters that containerd has and that work.
func (r *Runtime) Snapshotters(ctx context.Context) ([]string, error) {
	answer, err := r.client.IntrospectionService().Plugins(ctx, "type==io.containerd.snapshotter.v1")
	if err != nil {
		return nil, fmt.Errorf("ask containerd at %s for its snapshotters: %w", r.config.Socket, err)
	}
	var names []string
	for _, plugin := range answer.Plugins {
		if plugin.InitErr == nil {
			names = append(names, plugin.ID)
		}
	}
	slices.Sort(names)
	return names, nil
}

// Transient reports whether an error goes away by itself: containerd is away or too
// busy to answer, a shim died, or a directory is left over. Others mean that the
// request is wrong.
func Transient(err error) bool {
	return errors.Is(err, errShimLost) || leftDirectory(err) || errdefs.IsUnavailable(err) || errdefs.IsDeadlineExceeded(err) || status.Code(err) == codes.Unavailable
}

// leftDirectory reports whether containerd refuses a snapshot because it died when
// it made another and left the directory, which it has removed now. It tells it in
// words only; which ones depends on the file system.
func leftDirectory(err error) bool {
	return err != nil && strings.Contains(err.Error(), "failed to rename: ") &&
		(strings.Contains(err.Error(), "file exists") || strings.Contains(err.Error(), "directory not empty"))
}

// with puts the namespace and the logger into a context, for what the client's library does
// in this process. Calls of containerd have the client's own namespace.
func (r *Runtime) with(ctx context.Context) context.Context {
	return namespaces.WithNamespace(log.WithLogger(ctx, r.log), r.config.Namespace)
}

func (r *Runtime) snapshotter(name string) string { return cmp.Or(name, r.config.Snapshotter) }
