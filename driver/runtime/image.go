// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// ErrNoImage means that containerd does not hold an image.
var ErrNoImage = errors.New("image is not in containerd")

// Image is an image that is unpacked and ready to run.
type Image struct {
	// Name is its reference in containerd, Digest its manifest.
	Name   string
	Digest digest.Digest
	Config ispec.ImageConfig
	// Labels are containerd's, not the image's own.
	Labels map[string]string

	handle      client.Image
	snapshotter string
}

func (r *Runtime) unpack(ctx context.Context, handle client.Image, snapshotter string) (err error) {
	ctx, done, err := r.protect(r.withRoom(ctx))
	if err != nil {
		return err
	}
	defer func() { done(err) }()
	manifest, err := images.Manifest(ctx, handle.ContentStore(), handle.Target(), handle.Platform())
	if err != nil {
		return fmt.Errorf("read manifest of image %q: %w", handle.Name(), err)
	}
	if err := errors.Join(checkCount(manifest.Layers), checkKinds(manifest.Layers)); err != nil {
		return fmt.Errorf("unpack image %q: %w", handle.Name(), err)
	}
	err = handle.Unpack(ctx, snapshotter)
	if leftDirectory(err) {
		err = handle.Unpack(ctx, snapshotter)
	}
	if err != nil {
		return fmt.Errorf("unpack image %q: %w", handle.Name(), err)
	}
	return nil
}

// Access is the key that was given with the login by which the image was pulled, ""
// for an image that everybody may use.
func (i Image) Access() string { return i.Labels[accessLabel] }

// Managed reports whether the driver brought the image in, and may remove it.
func (i Image) Managed() bool { return i.Labels[managedLabel] != "" }

// Credentials returns the login for a registry host; empty for none.
type Credentials func(host string) (username, secret string, err error)

// Image returns an image that containerd already holds, without any network. It
// returns ErrNoImage when there is none.
func (r *Runtime) Image(ctx context.Context, ref, snapshotter string) (Image, error) {
	handle, err := r.client.GetImage(ctx, ref)
	if errdefs.IsNotFound(err) {
		return Image{}, fmt.Errorf("%q: %w", ref, ErrNoImage)
	}
	if err != nil {
		return Image{}, fmt.Errorf("look up image %q: %w", ref, err)
	}
	return r.ready(r.with(ctx), handle, snapshotter)
}

// ready unpacks an image where that is still to be done, and reads its config.
func (r *Runtime) ready(ctx context.Context, handle client.Image, snapshotter string) (Image, error) {
	snapshotter = r.snapshotter(snapshotter)
	image := Image{
		Name: handle.Name(), Digest: handle.Target().Digest, Labels: handle.Labels(),
		handle: handle, snapshotter: snapshotter,
	}
	// What containerd holds by a digest never changes, and while the image is
	// there its layers stay unpacked.
	key := string(image.Digest) + " " + snapshotter
	if known, ok := r.configs.get(key); ok {
		image.Config = known
		return image, nil
	}
	if err := checkDescriptions(ctx, handle.ContentStore(), handle.Target()); err != nil {
		return Image{}, fmt.Errorf("image %q: %w", handle.Name(), err)
	}
	unpacked, err := handle.IsUnpacked(ctx, snapshotter)
	if err != nil {
		return Image{}, fmt.Errorf("inspect image %q: %w", handle.Name(), err)
	}
	if !unpacked {
		if err := r.unpack(ctx, handle, snapshotter); err != nil {
			return Image{}, err
		}
	}
	desc, err := handle.Config(ctx)
	if err != nil {
		return Image{}, fmt.Errorf("read config of image %q: %w", handle.Name(), err)
	}
	text, err := content.ReadBlob(ctx, handle.ContentStore(), desc)
	if err != nil {
		return Image{}, fmt.Errorf("read config of image %q: %w", handle.Name(), err)
	}
	var parsed ispec.Image
	if err := json.Unmarshal(text, &parsed); err != nil {
		return Image{}, fmt.Errorf("read config of image %q: %w", handle.Name(), err)
	}
	image.Config = parsed.Config
	r.configs.put(key, parsed.Config, len(text))
	return image, nil
}

// hosts finds registries as the operator configured them for containerd.
func (r *Runtime) hosts(ctx context.Context, credentials Credentials, transport func(http.RoundTripper) http.RoundTripper) docker.RegistryHosts {
	options := config.HostOptions{Credentials: credentials}
	if r.config.HostsDir != "" {
		options.HostDir = config.HostDirFromRoot(r.config.HostsDir)
	}
	options.UpdateClient = func(c *http.Client) error {
		c.Transport, c.CheckRedirect = transport(c.Transport), keepLogins
		return nil
	}
	return config.ConfigureHosts(ctx, options)
}
