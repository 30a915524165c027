// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
)

// Labels on images. They are in containerd, not in memory, so that several
// drivers on one containerd agree, and a restart forgets nothing.
const (
	// managedLabel marks images that the driver brought in, and may remove again.
	managedLabel = "io.nomad-gpu.managed"
	// accessLabel is who may use an image without asking its registry.
	accessLabel = "io.nomad-gpu.access"
	// usedLabel says when an image was last used.
	usedLabel = "io.nomad-gpu.used-at"
)

const (
	// ownerLabel is on all that the driver makes in containerd but images, so
	// that leftovers are found, after a reboot too.
	ownerLabel = "io.nomad-gpu.owner"
	// leaseExpiry ends the leases that keep containerd's garbage collector away from
	// images being fetched and unpacked, if no other client does.
	leaseExpiry = 24 * time.Hour
)

func (r *Runtime) ownerLabels() map[string]string {
	return map[string]string{ownerLabel: r.config.Owner}
}

func (r *Runtime) ownerFilter() string {
	return fmt.Sprintf("labels.%q==%q", ownerLabel, r.config.Owner)
}

// ownedLabels adds the owner to labels.
func (r *Runtime) ownedLabels(labels map[string]string) map[string]string {
	all := r.ownerLabels()
	for key, value := range labels {
		if key != ownerLabel {
			all[key] = value
		}
	}
	return all
}

// protect keeps all that is made under the returned context until done is called with
// the outcome. Of an image that is too large nothing stays: else one refused start
// after the other would fill the disk until containerd collects its garbage.
func (r *Runtime) protect(ctx context.Context) (_ context.Context, done func(error), err error) {
	if _, protected := leases.FromContext(ctx); protected {
		return ctx, func(error) {}, nil
	}
	service := r.client.LeasesService()
	lease, err := service.Create(ctx, leases.WithRandomID(), leases.WithExpiration(leaseExpiry), leases.WithLabels(r.ownerLabels()))
	if err != nil {
		return nil, nil, fmt.Errorf("protect what is made from containerd's garbage collector: %w", err)
	}
	r.held.Store(lease.ID, true)
	return leases.WithLease(ctx, lease.ID), func(outcome error) {
		r.held.Delete(lease.ID)
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		var options []leases.DeleteOpt
		if errors.Is(outcome, ErrImageTooLarge) {
			options = append(options, leases.SynchronousDelete)
		}
		_ = service.Delete(cleanup, lease, options...) // else collectLeases does it, or it expires
	}, nil
}

// collectLeases removes the leases of processes that died, and those that this one
// could not give up while containerd was away, so that containerd collects what
// was fetched half-way.
func (r *Runtime) collectLeases(ctx context.Context, before time.Time) error {
	service := r.client.LeasesService()
	all, err := service.List(ctx, r.ownerFilter())
	if err != nil {
		return fmt.Errorf("list leases: %w", err)
	}
	for _, lease := range all {
		_, held := r.held.Load(lease.ID)
		if held || !lease.CreatedAt.Before(before) {
			continue
		}
		if err := service.Delete(ctx, lease); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("remove lease %s: %w", lease.ID, err)
		}
	}
	return nil
}

// TouchImage records that an image is used now. Images that another client
// brought into containerd are left alone.
func (r *Runtime) TouchImage(ctx context.Context, name string, now time.Time) error {
	service := r.client.ImageService()
	image, err := service.Get(ctx, name)
	if err != nil {
		return fmt.Errorf("look up image %q: %w", name, notFound(err))
	}
	if image.Labels[managedLabel] == "" {
		return nil
	}
	image.Labels[usedLabel] = now.UTC().Format(time.RFC3339Nano)
	if _, err := service.Update(ctx, image, "labels."+usedLabel); err != nil {
		return fmt.Errorf("label image %q: %w", name, notFound(err))
	}
	return nil
}

// CollectImages removes the driver's images that no container has and that were
// last used before the given time. It returns their names.
func (r *Runtime) CollectImages(ctx context.Context, before time.Time) ([]string, error) {
	all, err := r.client.ImageService().List(ctx, fmt.Sprintf("labels.%q==true", managedLabel))
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	containers, err := r.client.ContainerService().List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	used := map[string]bool{}
	for _, c := range containers {
		used[c.Image] = true
	}
	var removed []string
	for _, image := range all {
		if used[image.Name] || !unusedSince(image, before) {
			continue
		}
		if err := r.client.ImageService().Delete(ctx, image.Name); err != nil && !errdefs.IsNotFound(err) {
			return removed, fmt.Errorf("remove image %q: %w", image.Name, err)
		}
		r.configs.forget(image.Target.Digest)
		removed = append(removed, image.Name)
	}
	return removed, nil
}

func unusedSince(image images.Image, before time.Time) bool {
	last := image.UpdatedAt
	if at, err := time.Parse(time.RFC3339Nano, image.Labels[usedLabel]); err == nil {
		last = at
	}
	return last.Before(before)
}

// CollectLeftovers removes the driver's snapshots and sandbox records and the shims
// that were made before the given time and have no container, and leases of
// processes that died: what a start left that was cut off in the middle. Shims carry
// no owner; they are those of containers with IDs of the driver's form.
func (r *Runtime) CollectLeftovers(ctx context.Context, ids *regexp.Regexp, before time.Time) error {
	orphan := func(id string, created time.Time) (bool, error) {
		if !created.Before(before) {
			return false, nil
		}
		_, err := r.client.ContainerService().Get(ctx, id)
		if errdefs.IsNotFound(err) {
			return true, nil
		}
		return false, err
	}
	snapshotters, err := r.Snapshotters(ctx)
	problems := []error{err}
	for _, name := range snapshotters {
		problems = append(problems, r.collectSnapshots(ctx, name, orphan))
	}
	problems = append(problems, r.collectSandboxes(ctx, orphan), r.collectShims(ids, orphan), r.collectLeases(ctx, before))
	return errors.Join(problems...)
}

type orphanFunc func(id string, created time.Time) (bool, error)

func (r *Runtime) collectSnapshots(ctx context.Context, snapshotter string, orphan orphanFunc) error {
	service := r.client.SnapshotService(snapshotter)
	var keys []string
	err := service.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		is, err := orphan(info.Name, info.Created)
		if is {
			keys = append(keys, info.Name)
		}
		return err
	}, r.ownerFilter())
	if err != nil {
		return fmt.Errorf("list snapshots: %w", err)
	}
	for _, key := range keys {
		if err := service.Remove(ctx, key); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("remove snapshot %s: %w", key, err)
		}
	}
	return nil
}

func (r *Runtime) collectSandboxes(ctx context.Context, orphan orphanFunc) error {
	all, err := r.client.SandboxStore().List(ctx, r.ownerFilter())
	if errdefs.IsNotImplemented(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list sandbox records: %w", err)
	}
	for _, record := range all {
		is, err := orphan(record.ID, record.CreatedAt)
		if err != nil {
			return err
		}
		if !is {
			continue
		}
		if err := r.removeSandbox(ctx, record.ID); err != nil {
			return err
		}
	}
	return nil
}
