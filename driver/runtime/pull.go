// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
)

// Pull says what to fetch.
type Pull struct {
	Ref         string
	Snapshotter string
	Credentials Credentials
	// IdleTimeout is how long the caller waits for a pull that waits for its registry and
	// receives next to nothing; 0 for as long as it takes. A big image over a slow line may
	// take as long as it moves, and unpacking is not waiting.
	IdleTimeout time.Duration
	// Access is kept with the image, for whoever wants it without asking the registry.
	Access string
	// Progress is called with the bytes received so far, now and then.
	Progress func(received int64)
}

// Reasons why a pull failed, beside those without a name.
var (
	// ErrPullIdle means that a registry sent nothing for the idle timeout.
	ErrPullIdle = errors.New("no data from the registry")
	// ErrPullDenied means that a registry refused the login, or wants one.
	ErrPullDenied = errors.New("the registry denies access")
	// ErrPullMissing means that a registry has no such image.
	ErrPullMissing = errors.New("the registry has no such image")
)

// Pull fetches and unpacks an image.
func (r *Runtime) Pull(ctx context.Context, p Pull) (Image, error) {
	var alone pullGroup
	return alone.do(ctx, "", p, func(ctx context.Context, m *meter) (Image, error) { return r.pull(ctx, p, m) })
}

func (r *Runtime) pull(ctx context.Context, p Pull, meter *meter) (_ Image, err error) {
	ctx, done, err := r.protect(r.withRoom(r.with(ctx)))
	if err != nil {
		return Image{}, err
	}
	defer func() { done(err) }()
	ctx, abort := r.withOwnIngests(ctx)
	defer func() {
		if err != nil {
			abort()
		}
	}()
	have, err := r.client.ImageService().Get(ctx, p.Ref)
	if err != nil && !errdefs.IsNotFound(err) {
		return Image{}, fmt.Errorf("look up image %q: %w", p.Ref, err)
	}
	named, err := reference.ParseDockerRef(p.Ref)
	if err != nil {
		return Image{}, fmt.Errorf("image %q is not a reference: %w", p.Ref, err)
	}
	resolver := newProvingResolver(docker.NewResolver(docker.ResolverOptions{Hosts: r.hosts(ctx, p.Credentials, meter.wrap)}), reference.Domain(named))
	pending := maps.Clone(have.Labels)
	if pending == nil {
		pending = map[string]string{managedLabel: "true"}
	}
	pending[accessLabel] = unproven
	options := []client.RemoteOpt{
		client.WithResolver(resolver),
		client.WithPullUnpack,
		// Of layers that are unpacked already too: verifyLayers reads all.
		client.WithUnpackOpts([]client.UnpackOpt{client.WithUnpackFetchAllContent()}),
		client.WithPullLabels(pending),
		client.WithImageHandlerWrapper(func(next images.Handler) images.Handler { return onceEach(r.boundedHandler(next)) }),
		client.WithMaxConcurrentDownloads(downloads),
		client.WithPullSnapshotter(r.snapshotter(p.Snapshotter)),
	}
	handle, err := r.client.Pull(ctx, p.Ref, options...)
	if err != nil {
		return Image{}, fmt.Errorf("pull image %q: %w", p.Ref, meter.explain(ctx, err))
	}
	if err := r.accept(ctx, handle, resolver, have); err != nil {
		return Image{}, errors.Join(fmt.Errorf("pull image %q: %w", p.Ref, meter.explain(ctx, err)), r.restore(ctx, p.Ref, have))
	}
	image, err := r.client.ImageService().Update(ctx, images.Image{Name: handle.Name(), Target: handle.Target(), Labels: labelsOfPull(have, handle.Target().Digest, p)})
	if err != nil {
		return Image{}, fmt.Errorf("pull image %q: %w", p.Ref, err)
	}
	return r.ready(ctx, client.NewImageWithPlatform(r.client, image, handle.Platform()), p.Snapshotter)
}

// accept decides whether an image that was fetched may be used.
func (r *Runtime) accept(ctx context.Context, handle client.Image, resolver *provingResolver, have images.Image) error {
	if err := checkDescriptions(ctx, handle.ContentStore(), handle.Target()); err != nil {
		return err
	}
	if err := resolver.prove(ctx, handle); err != nil {
		return err
	}
	return r.verifyLayers(ctx, handle)
}

// restore undoes what a pull that failed made of an image's name.
func (r *Runtime) restore(ctx context.Context, ref string, had images.Image) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	service := r.client.ImageService()
	if had.Name == "" {
		if err := service.Delete(ctx, ref); !errdefs.IsNotFound(err) {
			return err
		}
		return nil
	}
	_, err := service.Update(ctx, had)
	return err
}

// labelsOfPull are those that an image gets. One that another client brought in stays
// theirs: it keeps its labels, and is not collected. One that everybody may use already
// is not taken from them by whoever pulls it with a login.
func labelsOfPull(have images.Image, is digest.Digest, p Pull) map[string]string {
	labels := map[string]string{managedLabel: "true"}
	if have.Name != "" && have.Labels[managedLabel] == "" {
		labels = maps.Clone(have.Labels)
		if labels == nil {
			labels = map[string]string{}
		}
	}
	delete(labels, accessLabel)
	everybodys := have.Target.Digest == is && have.Labels[accessLabel] == ""
	if p.Access != "" && !everybodys {
		labels[accessLabel] = p.Access
	}
	return labels
}

// explain names the reason of a failed pull, where there is a name for it.
func (m *meter) explain(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	switch {
	case cause != nil:
		return cause
	case errors.Is(err, ErrImageTooLarge), errors.Is(err, ErrNotPossessed), errors.Is(err, ErrLayerKind):
		return err
	case m.denied.Load():
		return fmt.Errorf("%w: %w", ErrPullDenied, err)
	case errdefs.IsNotFound(err):
		return fmt.Errorf("%w: %w", ErrPullMissing, err)
	}
	return err
}

// downloads is how many parts of an image are fetched at once.
const downloads = 3

// meter counts what a pull receives, and knows for how long nothing has come.
type meter struct {
	received atomic.Int64
	// denied is whether the last answer was a refusal. Containerd's errors tell
	// that in their text only.
	denied  atomic.Bool
	mu      sync.Mutex
	waiting int       // requests that wait for the registry
	since   time.Time // when they began to wait, or last had leastProgress
	recent  int64     // bytes since then
}

const (
	progressInterval = 5 * time.Second
	// leastProgress is what a registry must send within the idle timeout: one that
	// sends a byte now and then sends nothing.
	leastProgress = 64 << 10
)

// wait says that one more request waits for the registry, or one less. The time runs
// while there are any.
func (m *meter) wait(change int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting += change
	m.restart()
}

// restart begins the idle time again; the caller holds the lock.
func (m *meter) restart() { m.since, m.recent = time.Now(), 0 }

func (m *meter) add(n int) {
	m.received.Add(int64(n))
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.recent += int64(n); m.recent >= leastProgress {
		m.restart()
	}
}

// idle is for how long the pull has waited for its registry in vain.
func (m *meter) idle() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.waiting == 0 {
		return 0
	}
	return time.Since(m.since)
}

func (m *meter) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		m.wait(1)
		resp, err := plainly(next, req)
		if err != nil {
			m.wait(-1)
		} else {
			m.denied.Store(resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden)
			body := &meteredBody{ReadCloser: resp.Body, meter: m}
			if req.Header.Get("Accept") == "" {
				body.ReadCloser = &shortBody{ReadCloser: resp.Body, left: maxToken}
			}
			if resp.StatusCode >= http.StatusMultipleChoices || req.Method == http.MethodHead {
				body.end() // these need not be read
			}
			resp.Body = body
		}
		return resp, err
	})
}

// plainly asks for parts of an image as they are, and refuses an answer that is packed all the
// same: containerd unpacks it in the memory of this process, in all the ways that the answer
// names, one upon the other, and zstd takes up to a gigabyte each time. Gzip and deflate, once,
// take next to nothing.
func plainly(next http.RoundTripper, req *http.Request) (*http.Response, error) {
	if req.Header.Get("Accept-Encoding") != "" { // without it, Go asks for gzip by itself
		req = req.Clone(req.Context())
		req.Header.Set("Accept-Encoding", "identity")
	}
	resp, err := next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	packed := strings.FieldsFunc(strings.ToLower(strings.Join(resp.Header.Values("Content-Encoding"), ",")), func(r rune) bool { return r == ',' || r == ' ' || r == '\t' })
	if len(packed) == 0 || len(packed) == 1 && slices.Contains([]string{"identity", "gzip", "deflate"}, packed[0]) {
		return resp, nil
	}
	_ = resp.Body.Close()
	return nil, fmt.Errorf("%w: its registry answers with content encoding %.80q, which it was not asked for", ErrImageTooLarge, strings.Join(packed, ", "))
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// meteredBody is an answer that is waited for until it was read or closed.
type meteredBody struct {
	io.ReadCloser
	meter *meter
	over  sync.Once
}

func (b *meteredBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.meter.add(n)
	if err != nil {
		b.end()
	}
	return n, err
}

func (b *meteredBody) Close() error {
	b.end()
	return b.ReadCloser.Close()
}

func (b *meteredBody) end() { b.over.Do(func() { b.meter.wait(-1) }) }

// maxToken bounds an answer that is no part of an image: the tokens of a registry's
// login, which the client reads into memory as a whole. It asks for them without an
// Accept header.
const maxToken = 1 << 20

// shortBody is an answer that ends with an error when it is too long.
type shortBody struct {
	io.ReadCloser
	left int
}

func (b *shortBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= n; b.left < 0 {
		return 0, fmt.Errorf("the registry's login sends an answer of more than %d MiB", maxToken>>20)
	}
	return n, err
}

// pullGroup lets tasks that want the same image share one pull. Each has its own
// patience, and the pull ends when the last of them has gone.
type pullGroup struct {
	mu     sync.Mutex
	flight map[string]*flight
}

type flight struct {
	waiters int
	meter   meter
	cancel  context.CancelFunc
	done    chan struct{}
	image   Image
	err     error
}

const (
	// stalled is for how long a pull may have received nothing to be joined. A registry that
	// answers others does not answer this one.
	stalled = 30 * time.Second
	// lastWords is how long the last one to leave a pull waits for it to tidy up.
	lastWords = 2 * time.Second
)

type pullFunc func(context.Context, *meter) (Image, error)

// do runs pull once for all callers with the same key.
func (g *pullGroup) do(ctx context.Context, key string, p Pull, pull pullFunc) (Image, error) {
	f := g.join(key, pull)
	image, err := f.wait(ctx, p)
	if g.leave(key, f) {
		select {
		case <-f.done:
		case <-time.After(lastWords):
		}
	}
	return image, err
}

// wait waits for the end of a pull as long as one caller does.
func (f *flight) wait(ctx context.Context, p Pull) (Image, error) {
	var progress <-chan time.Time
	if p.Progress != nil {
		tick := time.NewTicker(progressInterval)
		defer tick.Stop()
		progress = tick.C
	}
	patience, joined := time.NewTimer(p.IdleTimeout), time.Now()
	defer patience.Stop()
	if p.IdleTimeout == 0 {
		patience.Stop()
	}
	for {
		select {
		case <-f.done:
			return f.image, f.err
		case <-ctx.Done():
			return Image{}, ctx.Err()
		case <-progress:
			p.Progress(f.meter.received.Load())
		case <-patience.C:
			idle := min(f.meter.idle(), time.Since(joined))
			if idle >= p.IdleTimeout {
				return Image{}, fmt.Errorf("pull image %q: %w for %s", p.Ref, ErrPullIdle, p.IdleTimeout)
			}
			patience.Reset(p.IdleTimeout - idle)
		}
	}
}

func (g *pullGroup) join(key string, pull pullFunc) *flight {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f, ok := g.flight[key]; ok && f.meter.idle() < stalled {
		f.waiters++
		return f
	}
	ctx, cancel := context.WithCancel(context.Background())
	f := &flight{waiters: 1, cancel: cancel, done: make(chan struct{})}
	if g.flight == nil {
		g.flight = map[string]*flight{}
	}
	g.flight[key] = f
	go func() {
		defer close(f.done)
		f.image, f.err = pull(ctx, &f.meter)
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.flight[key] == f {
			delete(g.flight, key)
		}
	}()
	return f
}

// leave reports whether it was the last who left.
func (g *pullGroup) leave(key string, f *flight) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	f.waiters--
	if f.waiters > 0 {
		return false
	}
	f.cancel()
	if g.flight[key] == f {
		delete(g.flight, key)
	}
	return true
}

// PullShared is Pull, with callers of the same key sharing one download. Key
// must tell apart what differs in reference, snapshotter and login.
func (r *Runtime) PullShared(ctx context.Context, key string, p Pull) (Image, error) {
	return r.pulls.do(ctx, key, p, func(its context.Context, m *meter) (Image, error) { return r.pull(sameTenant(its, ctx), p, m) })
}
