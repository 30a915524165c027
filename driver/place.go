// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/rooted"
	"github.com/nomad-gpu/nomad-gpu/driver/spec"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// placement is where one mount lies in the container.
type placement struct {
	specs.Mount
	// at is the target without links.
	at string
	// authors is whether the author chose the target.
	authors bool
	// ofShare is whether the mount belongs to the GPU share.
	ofShare bool
	// shown is the mount's source in the stage, "" while it is not there.
	shown string
}

func (m placement) restrictions() uintptr { return taskconfig.Mount{Options: m.Options}.Restrictions() }

// placeMounts gives every mount the place that its target is in the container,
// after all links of the image, and holds that to the rules that the target as it
// is written kept already. The runtime finds no link on its way to any of them:
// what lies in another mount, which tasks may be writing to, is put there now.
func (p *startPlan) placeMounts(root string, s *specs.Spec) error {
	places := rooted.NewPlaces(root)
	for _, dir := range taskconfig.KernelPaths {
		at, err := places.Find(dir)
		if err != nil {
			return err
		}
		if at != dir {
			return fmt.Errorf("image %q: %s is a symbolic link, and the runtime's", p.config.Image, dir)
		}
		places.Cover(dir)
	}
	var runtimes, all []placement
	for _, m := range s.Mounts {
		one := placement{Mount: m, at: m.Destination, authors: p.authorsTarget(m.Destination), ofShare: p.sharesTarget(m.Destination)}
		if !one.authors && taskconfig.InKernelPath(m.Destination) {
			runtimes = append(runtimes, one)
			continue
		}
		var err error
		if one.at, err = places.Find(m.Destination); err != nil {
			return err
		}
		places.Cover(one.at)
		all = append(all, one)
	}
	// What lies deeper comes later, or it would be hidden.
	slices.SortStableFunc(all, func(a, b placement) int { return depth(a.at) - depth(b.at) })
	if err := checkPlaces(all, p.config.Privileged); err != nil {
		return err
	}
	if err := p.checkCwd(rooted.NewPlaces(root), s.Process.Cwd, all); err != nil {
		return err
	}
	left, err := p.nest(all)
	if err != nil {
		return err
	}
	s.Mounts = s.Mounts[:0]
	for _, one := range append(runtimes, left...) {
		one.Destination = one.at
		if err := p.keepRestrictions(&one); err != nil {
			return err
		}
		s.Mounts = append(s.Mounts, one.Mount)
	}
	return nil
}

// checkCwd refuses a working directory that links of the image, or in what is mounted by
// now, lead to where the runtime has descriptors of the host's.
func (p *startPlan) checkCwd(places *rooted.Places, cwd string, all []placement) error {
	for _, dir := range taskconfig.KernelPaths {
		places.Cover(dir)
	}
	for _, m := range all { // the deepest comes last
		if m.Type == "tmpfs" {
			places.Cover(m.at)
			continue
		}
		source, err := rooted.OpenHost(m.Source)
		if err != nil { // mounting it says why
			places.Cover(m.at)
			continue
		}
		defer source.Close()
		places.Show(m.at, source)
	}
	at, err := places.Find(cwd)
	if err != nil {
		return err
	}
	if taskconfig.InKernelPath(at) && !p.config.Privileged {
		return fmt.Errorf("working directory %q is %q in this container, which is the runtime's; set another cwd", cwd, at)
	}
	return nil
}

// keepRestrictions writes down what a mount in the stage lacks: a runtime that changes
// one option of a mount sets them all, and would give back what the host took away.
func (p *startPlan) keepRestrictions(m *placement) error {
	if path.Dir(m.Source) != p.stage.Dir() {
		return nil
	}
	lacks, err := rooted.RestrictionsOf(m.Source)
	m.Options = taskconfig.Mount{Options: m.Options}.Restricted(lacks).Options
	return err
}

func depth(place string) int { return strings.Count(strings.TrimSuffix(place, "/"), "/") }

func (p *startPlan) sharesTarget(target string) bool {
	return target == spec.InitTarget || slices.ContainsFunc(p.share.Mounts, func(m taskconfig.Mount) bool { return m.Target == target })
}

func (p *startPlan) authorsTarget(target string) bool {
	for _, m := range p.config.Mounts {
		if m.Target == target {
			return true
		}
	}
	for _, m := range p.cfg.Mounts {
		if path.Clean(m.TaskPath) == target {
			return true
		}
	}
	return false
}

// checkPlaces refuses links of an image that lead a mount into the runtime's
// directories or into the GPU share, and mounts of the author's that would cover the
// driver's.
func checkPlaces(all []placement, privileged bool) error {
	for i, m := range all {
		if taskconfig.InKernelPath(m.at) && m.at != m.Destination && !privileged {
			return fmt.Errorf("target %q is %q in this image, which is the runtime's; mount elsewhere", m.Destination, m.at)
		}
		if i := slices.IndexFunc(all, func(o placement) bool { return o.ofShare && taskconfig.Covers(o.at, m.at) }); i >= 0 && !m.ofShare {
			return fmt.Errorf("mounts: target %q lies in %q in this image, which belongs to the task's GPU share; mount elsewhere", m.Destination, all[i].Destination)
		}
		if !m.authors {
			continue
		}
		if m.at == "/" {
			return fmt.Errorf("mounts: target %q is the root directory in this image; mount elsewhere", m.Destination)
		}
		for j, other := range all {
			if i != j && (!other.authors && taskconfig.Covers(m.at, other.at) || m.at == other.at) {
				return fmt.Errorf("mounts: target %q would cover %q in this image", m.Destination, other.Destination)
			}
		}
	}
	return nil
}

// nest puts mounts that lie in a directory of the host into that directory, in the
// stage, and returns the others. The deepest are first: they come along when what
// they lie in is put into something itself.
func (p *startPlan) nest(all []placement) ([]placement, error) {
	nested := make([]bool, len(all))
	for i := len(all) - 1; i >= 0; i-- {
		in := -1
		for j := range i {
			if taskconfig.Covers(all[j].at, all[i].at) {
				in = j // the last is the deepest
			}
		}
		if in < 0 || all[in].Type == "tmpfs" {
			continue // the root directory and a new file system hold no links by now
		}
		if err := p.putInto(&all[in], &all[i]); err != nil {
			return nil, fmt.Errorf("mount %q in %q: %w", all[i].Destination, all[in].Destination, err)
		}
		nested[i] = true
	}
	var left []placement
	for i, one := range all {
		if !nested[i] {
			left = append(left, one)
		}
	}
	return left, nil
}

func (p *startPlan) putInto(outer, inner *placement) error {
	if slices.Contains(outer.Options, "rshared") || slices.Contains(outer.Options, "shared") {
		return fmt.Errorf("the host would get the mount as well: the outer one has propagation rshared")
	}
	for _, m := range []*placement{outer, inner} {
		if err := p.showSource(m); err != nil {
			return err
		}
	}
	rest := strings.TrimPrefix(strings.TrimPrefix(inner.at, outer.at), "/")
	// What a task may not write to gets no mount points either: it is read-only here.
	err := p.stage.BindBelow(outer.shown, rest, inner.shown, inner.restrictions())
	if errors.Is(err, unix.EROFS) {
		return fmt.Errorf("the outer mount is read-only and has nothing at %q to mount on: %w", rest, err)
	}
	if err != nil {
		return err
	}
	// The outer mount takes the inner one along, with its own propagation.
	outer.Options = slices.Clone(outer.Options)
	for i, option := range outer.Options {
		switch option {
		case "bind":
			outer.Options[i] = "rbind"
		case "rprivate":
			outer.Options[i] = "private"
		case "rslave":
			outer.Options[i] = "slave"
		}
	}
	return nil
}

// showSource puts a source into the stage if it is not there yet.
func (p *startPlan) showSource(m *placement) error {
	if path.Dir(m.Source) == p.stage.Dir() {
		m.shown = m.Source
	}
	if m.shown != "" {
		return nil
	}
	var err error
	if m.Type == "tmpfs" {
		m.shown, err = p.stage.Tmpfs(p.stage.Name(), m.Options)
		return err
	}
	source, err := rooted.OpenHost(m.Source)
	if err != nil {
		return err
	}
	defer source.Close()
	if m.shown, err = p.stage.Bind(p.stage.Name(), source, rooted.Binding{Propagation: rooted.Slave, Restrictions: m.restrictions()}); err != nil {
		return err
	}
	m.Source = m.shown
	return nil
}
