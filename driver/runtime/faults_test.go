// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/pkg/labels"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"
	"golang.org/x/sys/unix"
)

// TestNothingSucceedsWithoutContainerd: an error that is lost would be taken for a
// container, an image or a leftover that is not there.
func TestNothingSucceedsWithoutContainerd(t *testing.T) {
	r, err := New(Config{Socket: filepath.Join(t.TempDir(), "none.sock"), Namespace: "none", Owner: "o", Snapshotter: "overlayfs"})
	must.NoError(t, err)
	defer r.Close()
	ctx, now := t.Context(), time.Now()
	c := r.Unloaded("id", "image", map[string]string{"a": "b"}, []byte("record"))
	must.Eq(t, "record", string(c.Record))
	second := func(_ any, err error) error { return err }
	for name, err := range map[string]error{
		"version": second(r.Version(ctx)), "snapshotters": second(r.Snapshotters(ctx)), "runc": second(r.Runc(ctx)),
		"image": second(r.Image(ctx, "example.test/x:1", "")), "pull": second(r.Pull(ctx, Pull{Ref: "example.test/x:1", Credentials: noLogin})),
		"shared pull": second(r.PullShared(ctx, "key", Pull{Ref: "example.test/x:1", Credentials: noLogin})),
		"import":      second(r.Import(ctx, bytes.NewReader(nil), "")), "create": second(r.Create(ctx, NewContainer{ID: "id"})),
		"load": second(r.Load(ctx, "id")), "find": second(r.Find(ctx, nil)), "owned": second(r.Owned(ctx)),
		"touch": r.TouchImage(ctx, "x", now), "collect images": second(r.CollectImages(ctx, now)),
		"collect": r.CollectLeftovers(ctx, regexp.MustCompile("^no such ID$"), now), "sandbox": r.removeSandbox(r.with(ctx), "id"),
		"start": c.Start(ctx, Stdio{}), "status": second(c.Status(ctx)), "wait": second(c.Wait(ctx)), "metrics": second(c.Metrics(ctx)),
		"signal": c.Signal(ctx, syscall.SIGTERM, true), "labels": c.SetLabels(ctx, map[string]string{"a": "b"}), "current labels": second(c.CurrentLabels(ctx)),
		"exec": second(c.Exec(ctx, Exec{Command: []string{"true"}})), "sessions": second(c.Sessions(ctx)), "end sessions": c.EndSessions(ctx),
		"end": c.End(ctx), "remove": c.Remove(ctx),
	} {
		must.Error(t, err, must.Sprint(name))
		must.False(t, errors.Is(err, ErrNotFound) || errors.Is(err, ErrNoImage), must.Sprint(name, "is not there, says a containerd that is away"))
	}
	must.False(t, c.OOMKilled(ctx))
}

func TestFilesOfUsersArePlain(t *testing.T) {
	for name, c := range map[string]struct {
		make func(etc string) error
		says string
	}{
		"none":           {func(string) error { return nil }, ""},
		"plain":          {func(etc string) error { return os.WriteFile(filepath.Join(etc, "group"), nil, 0o600) }, ""},
		"a pipe":         {func(etc string) error { return unix.Mkfifo(filepath.Join(etc, "group"), 0o600) }, "etc/group is not a regular file"},
		"a directory":    {func(etc string) error { return os.Mkdir(filepath.Join(etc, "passwd"), 0o700) }, "etc/passwd is not a regular file"},
		"a link to none": {func(etc string) error { return os.Symlink("none", filepath.Join(etc, "passwd")) }, ""},
		"a link to a pipe": {func(etc string) error {
			return errors.Join(unix.Mkfifo(filepath.Join(etc, "p"), 0o600), os.Symlink("p", filepath.Join(etc, "group")))
		}, "etc/group is not a regular file"},
		"a circle": {func(etc string) error { return os.Symlink("passwd", filepath.Join(etc, "passwd")) }, "look for the image's users"},
	} {
		root := t.TempDir()
		must.NoError(t, os.Mkdir(filepath.Join(root, "etc"), 0o755))
		must.NoError(t, c.make(filepath.Join(root, "etc")))
		if err := plainUserFiles(root); c.says == "" {
			must.NoError(t, err, must.Sprint(name))
		} else {
			must.ErrorContains(t, err, c.says, must.Sprint(name))
		}
	}
	must.ErrorContains(t, plainUserFiles("/no/such/root"), "look for the image's users")
	failed := errors.New("failed")
	for _, is := range []error{nil, failed} {
		err := named("what", func(context.Context, oci.Client, *containers.Container, *oci.Spec) error { return is })(t.Context(), nil, nil, nil)
		must.Eq(t, is != nil, err != nil && errors.Is(err, failed) && strings.HasPrefix(err.Error(), "what: "))
	}
}

func TestAReaderTellsItsEndOnce(t *testing.T) {
	for _, reader := range []io.Reader{strings.NewReader("text"), iotest.ErrReader(errors.New("broken"))} {
		s := &signalledReader{reader: reader, ended: make(chan struct{})}
		_, _ = s.Read(nil)
		_, first := io.ReadAll(s)
		_, second := s.Read(make([]byte, 1))
		must.True(t, first != nil || errors.Is(second, io.EOF))
		<-s.ended
	}
}

// TestWhatIsReadOfAnArchivesStore: what describes an image, up to its bound, and layers
// and what has no type yet, which are read in parts.
func TestWhatIsReadOfAnArchivesStore(t *testing.T) {
	inner, err := local.NewStore(t.TempDir())
	must.NoError(t, err)
	store := newArchiveStore(inner)
	large := ispec.Descriptor{Digest: digest.FromString("none"), Size: maxDescription + 1}
	_, err = store.ReaderAt(t.Context(), large)
	must.Error(t, err, must.Sprint("it is not there"))
	text := make([]byte, maxDescription+1)
	writer, err := store.Writer(t.Context())
	must.NoError(t, err)
	_, err = writer.Write(text)
	must.NoError(t, err)
	large.Digest = writer.Digest()
	_, err = store.Handle(t.Context(), large)
	must.ErrorContains(t, err, "which it does not hold")
	must.NoError(t, writer.Commit(t.Context(), large.Size, large.Digest))
	_, err = store.Handle(t.Context(), large)
	must.NoError(t, err)
	for mediaType, refused := range map[string]bool{"": false, ispec.MediaTypeImageLayerGzip: false, ispec.MediaTypeImageConfig: true, "text/plain": true} {
		large.MediaType = mediaType
		reader, err := store.ReaderAt(t.Context(), large)
		must.Eq(t, refused, errors.Is(err, ErrImageTooLarge), must.Sprint(mediaType))
		if !refused {
			must.NoError(t, err)
			must.Eq(t, large.Size, reader.Size())
			must.NoError(t, reader.Close())
		}
	}
}

// TestWhatAnArchiveHoldsIsKnown, also where containerd had it before.
func TestWhatAnArchiveHoldsIsKnown(t *testing.T) {
	inner, err := local.NewStore(t.TempDir())
	must.NoError(t, err)
	desc := put(t, inner, ispec.MediaTypeImageLayer, []byte("layer"))
	held := func(s *archiveStore, want bool) {
		t.Helper()
		_, err := s.Handle(t.Context(), desc)
		must.Eq(t, want, err == nil)
	}
	_, err = newArchiveStore(inner).Writer(t.Context(), func(*content.WriterOpts) error { return errFailed })
	must.ErrorIs(t, err, errFailed)

	opened := newArchiveStore(inner)
	held(opened, false)
	_, err = opened.Writer(t.Context(), content.WithRef("x"), content.WithDescriptor(desc))
	must.True(t, errdefs.IsAlreadyExists(err))
	held(opened, true)

	written := newArchiveStore(inner)
	writer, err := written.Writer(t.Context(), content.WithRef("x"))
	must.NoError(t, err)
	_, err = writer.Write([]byte("layer"))
	must.NoError(t, err)
	must.True(t, errdefs.IsAlreadyExists(writer.Commit(t.Context(), desc.Size, desc.Digest)))
	held(written, true)

	for holds, want := range map[string]bool{"plain": true, "other": false} {
		packed := newArchiveStore(labeled{labels: map[string]string{labels.LabelUncompressed: digest.FromString("plain").String()}})
		packed.add(digest.FromString(holds))
		held(packed, want)
	}
	shared := newArchiveStore(inner)
	together(func(worker, n int) {
		d := digest.Digest(fmt.Sprint(worker, n%50))
		shared.add(d)
		if _, err := shared.Handle(t.Context(), ispec.Descriptor{Digest: d}); err != nil {
			t.Error(err)
		}
	})
}

func TestAnArchiveHoldsOneImage(t *testing.T) {
	_, m := inMemory(t)
	one := ispec.Descriptor{MediaType: ispec.MediaTypeImageManifest, Digest: digest.FromString("one")}
	renamed, other := one, one
	renamed.Annotations = map[string]string{ispec.AnnotationRefName: "latest"}
	other.Digest = digest.FromString("other")
	for _, c := range []struct {
		text string
		says string
	}{
		{`{"manifests":[` + textOf(t, one) + `]}`, ""},
		{`{"manifests":[` + textOf(t, one) + `,` + textOf(t, renamed) + `]}`, ""},
		{`{}`, "it holds 0 images"},
		{`{"manifests":[` + textOf(t, one) + `,` + textOf(t, renamed) + `,` + textOf(t, other) + `]}`, "it holds 2 images"},
		{"rubbish", "invalid character"},
	} {
		is, err := onlyManifest(t.Context(), m.store, put(t, m.store.Store, "text/plain", []byte(c.text)))
		if c.says == "" {
			must.NoError(t, err)
			must.Eq(t, one, is)
			continue
		}
		must.ErrorContains(t, err, c.says)
	}
	_, err := onlyManifest(t.Context(), m.store, one)
	must.Error(t, err, must.Sprint("it is not there"))
	for _, call := range []string{"content.Info", "content.ReaderAt"} {
		m.fails[call] = []error{errFailed}
		_, err = onlyManifest(t.Context(), m.store, put(t, m.store.Store, "text/plain", []byte(call)))
		must.ErrorIs(t, err, errFailed)
	}
}

func textOf(t *testing.T, of any) string {
	t.Helper()
	text, err := json.Marshal(of)
	must.NoError(t, err)
	return string(text)
}

// TestAnArchiveThatIsRefusedIsLeft: the rest of it is not read, and no goroutine waits to.
func TestAnArchiveThatIsRefusedIsLeft(t *testing.T) {
	r, m := inMemory(t)
	_, err := r.Import(t.Context(), iotest.ErrReader(errFailed), "")
	must.ErrorIs(t, err, errFailed)
	noise := make([]byte, 8<<20)
	_, err = rand.Read(noise)
	must.NoError(t, err)
	var archived bytes.Buffer
	w := tar.NewWriter(&archived)
	for _, file := range []struct {
		name string
		text []byte
	}{{"oci-layout", []byte("rubbish")}, {"noise", noise}} {
		must.NoError(t, w.WriteHeader(&tar.Header{Name: file.name, Mode: 0o644, Size: int64(len(file.text))}))
		_, err := w.Write(file.text)
		must.NoError(t, err)
	}
	must.NoError(t, w.Close())
	_, err = r.Import(t.Context(), bytes.NewReader(zstdOf(t, 1<<20, archived.Bytes())), "")
	must.Error(t, err)
	must.MapEmpty(t, m.leases)
	for _, who := range []string{"copyBounded", "startStreamDecoder"} {
		must.Wait(t, wait.InitialSuccess(wait.BoolFunc(func() bool {
			all := make([]byte, 4<<20)
			return !bytes.Contains(all[:runtime.Stack(all, true)], []byte(who))
		}), wait.Timeout(patience), wait.Gap(10*time.Millisecond)), must.Sprint(who))
	}
}
