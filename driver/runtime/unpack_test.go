// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/zstd"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/shoenig/test/must"
)

func TestRoomEndsAtTheLimit(t *testing.T) {
	for _, c := range []struct {
		limit   int64
		takes   []int64
		refused int // which of them, counted from 1; 0 for none
	}{
		{limit: 10, takes: []int64{0, 10}},
		{limit: 10, takes: []int64{11}, refused: 1},
		{limit: 10, takes: []int64{4, 6, 0, 1}, refused: 4},
		{limit: 10, takes: []int64{-1}, refused: 1},
		{limit: 10, takes: []int64{9, math.MaxInt64}, refused: 2},
		{limit: 1, takes: []int64{1, 1, 0}, refused: 2},
		{limit: 0, takes: []int64{math.MaxInt64, math.MaxInt64, -1}},
	} {
		left := &room{limit: c.limit}
		for i, n := range c.takes {
			err := left.take(&left.files, n)
			if i+1 == c.refused {
				must.ErrorIs(t, err, ErrImageTooLarge, must.Sprint(c))
				break
			}
			must.NoError(t, err, must.Sprint(c, i))
		}
		must.NoError(t, left.take(&left.bytes, c.limit)) // has a count of its own
	}
}

// TestFilesAreCountedAsTheyWillBe on disk, and in this process's memory.
func TestFilesAreCountedAsTheyWillBe(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for name, c := range map[string]struct {
		limit int64
		file  tar.Header
		fit   int
		says  string
	}{
		"empty files":         {40 << 10, tar.Header{Name: "a"}, 10, "max_unpacked_size"},
		"files with content":  {40<<10 + 10, tar.Header{Name: "a", Size: 4<<10 + 1}, 5, "max_unpacked_size"},
		"a hole":              {1 << 40, tar.Header{Name: "a", Size: math.MaxInt64}, 0, "max_unpacked_size"},
		"long names":          {1 << 40, tar.Header{Name: long}, 511, "names"},
		"long links":          {1 << 40, tar.Header{Linkname: long}, 511, "names"},
		"names of attributes": {1 << 40, tar.Header{PAXRecords: map[string]string{long: ""}}, 511, "names"},
		"attributes":          {1 << 40, tar.Header{PAXRecords: map[string]string{"": long}}, 511, "names"},
	} {
		filter := counted(t.Context(), &room{limit: c.limit}, &names{})
		for i := range c.fit {
			write, err := filter(&c.file)
			must.NoError(t, err, must.Sprint(name, i))
			must.True(t, write)
		}
		write, err := filter(&c.file)
		must.ErrorIs(t, err, ErrImageTooLarge, must.Sprint(name))
		must.ErrorContains(t, err, c.says)
		must.False(t, write && err == nil)
	}
}

func zstdOf(t *testing.T, window int, text []byte) []byte {
	t.Helper()
	var packed bytes.Buffer
	w, err := zstd.NewWriter(&packed, zstd.WithWindowSize(window), zstd.WithSingleSegment(false))
	must.NoError(t, err)
	for _, part := range [][]byte{text[:len(text)/2], text[len(text)/2:]} {
		_, err = w.Write(part)
		must.NoError(t, err)
		must.NoError(t, w.Flush())
	}
	must.NoError(t, w.Close())
	return packed.Bytes()
}

func TestDecompress(t *testing.T) {
	text := bytes.Repeat([]byte("layer"), 1<<10)
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	_, err := w.Write(text)
	must.NoError(t, err)
	must.NoError(t, w.Close())
	for name, packed := range map[string][]byte{
		"plain": text, "gzip": zipped.Bytes(), "zstd": zstdOf(t, 1<<20, text), "zstd of the largest window": zstdOf(t, 8<<20, text),
	} {
		plain, err := decompress(bytes.NewReader(packed))
		must.NoError(t, err, must.Sprint(name))
		is, err := io.ReadAll(plain)
		must.NoError(t, err, must.Sprint(name))
		must.Eq(t, text, is, must.Sprint(name))
		must.NoError(t, plain.Close())
	}
	empty, err := decompress(bytes.NewReader(nil))
	must.NoError(t, err)
	is, err := io.ReadAll(empty)
	must.NoError(t, err)
	must.SliceEmpty(t, is)
	// It would be kept in memory as a whole.
	plain, err := decompress(bytes.NewReader(zstdOf(t, 16<<20, text)))
	must.NoError(t, err)
	_, err = io.ReadAll(plain)
	must.ErrorIs(t, err, ErrImageTooLarge)
	must.ErrorContains(t, err, "a window of more than 8 MiB")
	// Containerd is asked for a mebibyte at a time.
	largest := 0
	plain, err = decompress(readerFunc(func(p []byte) (int, error) {
		largest = max(largest, len(p))
		return 0, io.EOF
	}))
	must.NoError(t, err)
	must.NoError(t, plain.Close())
	must.Eq(t, 1<<20, largest)
	// A first read that fails, and would succeed when it is tried again.
	_, err = decompress(iotest.TimeoutReader(iotest.OneByteReader(bytes.NewReader(zstdOf(t, 1<<20, text)))))
	must.ErrorIs(t, err, iotest.ErrTimeout)
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestNamesAreCountedToTheLast byte.
func TestNamesAreCountedToTheLast(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	all := &names{many: make(chan struct{}, 1)}
	filter := counted(t.Context(), &room{}, all)
	for range 511 {
		_, err := filter(&tar.Header{Name: long})
		must.NoError(t, err)
	}
	rest := 512<<20 - 511*(1<<20+rememberedFile) - rememberedFile
	_, err := filter(&tar.Header{Name: long[:rest]})
	must.NoError(t, err)
	_, err = filter(&tar.Header{})
	must.ErrorContains(t, err, "more than 512 MiB")
}

// TestOneLayerAtATimeHasManyNames: the next waits until that is unpacked, and the others
// do not.
func TestOneLayerAtATimeHasManyNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		many := make(chan struct{}, 1)
		half := &tar.Header{Name: strings.Repeat("x", manyNames/2)}
		first, second := &names{many: many}, &names{many: many}
		for range 4 {
			must.NoError(t, first.add(t.Context(), half))
		}
		must.NoError(t, second.add(t.Context(), half))
		ctx, cancel := context.WithCancel(t.Context())
		var err error
		waits := true
		go func() {
			err = second.add(ctx, half)
			waits = false
		}()
		synctest.Wait()
		must.True(t, waits)
		cancel()
		synctest.Wait()
		must.ErrorIs(t, err, context.Canceled)
		second.release() // what it has not
		first.release()
		must.NoError(t, second.add(t.Context(), half))
		second.release()
		must.Zero(t, len(many))
	})
}

// TestWhatFollowsATarsEnd is some zeros, and else the layer is refused: gigabytes of them
// are a few kilobytes packed.
func TestWhatFollowsATarsEnd(t *testing.T) {
	for name, row := range map[string]struct {
		follows []byte
		refused string
	}{
		"nothing":          {nil, ""},
		"a tar's padding":  {make([]byte, 9<<10), ""},
		"a lot of it":      {make([]byte, maxPadding), ""},
		"too much of it":   {make([]byte, maxPadding+1), "more than 1024 KiB follow its end"},
		"another tar":      {[]byte("\x00\x00file"), "something else than zeros follows its end"},
		"what is no UTF-8": {[]byte{0, 0xff}, "something else than zeros follows its end"},
	} {
		err := padding(iotest.HalfReader(bytes.NewReader(row.follows)))
		if row.refused == "" {
			must.NoError(t, err, must.Sprint(name))
			continue
		}
		must.ErrorIs(t, err, ErrImageTooLarge, must.Sprint(name))
		must.ErrorContains(t, err, row.refused, must.Sprint(name))
	}
	must.ErrorIs(t, padding(iotest.ErrReader(iotest.ErrTimeout)), iotest.ErrTimeout)
}

func layerOf(t *testing.T, files ...tar.Header) io.Reader {
	t.Helper()
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for _, f := range files {
		f.Mode = 0o640
		must.NoError(t, w.WriteHeader(&f))
		_, err := w.Write(bytes.Repeat([]byte("x"), int(f.Size)))
		must.NoError(t, err)
	}
	must.NoError(t, w.Close())
	return &layer
}

// TestApplyWritesWhereTheSnapshotIs: overlayfs gives an upper directory, in which what a
// layer removes is marked, and the native snapshotter a directory with what lies below.
func TestApplyWritesWhereTheSnapshotIs(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("files of layers have owners")
	}
	ctx := context.Background()
	lower, upper, native := t.TempDir(), t.TempDir(), t.TempDir()
	must.NoError(t, os.Mkdir(filepath.Join(lower, "dir"), 0o711))
	overlay := []mount.Mount{{Type: "overlay", Options: []string{"index=off", "workdir=/none", "upperdir=" + upper, "lowerdir=/none:" + lower}}}
	bind := []mount.Mount{{Type: "bind", Source: native, Options: []string{"rbind", "rw"}}}
	must.NoError(t, os.WriteFile(filepath.Join(native, "gone"), make([]byte, 10*leastFile), 0o600))

	for dir, mounts := range map[string][]mount.Mount{upper: overlay, native: bind} {
		layer := layerOf(t, tar.Header{Name: "dir/file", Size: 3}, tar.Header{Name: ".wh.gone"})
		must.NoError(t, applyTo(ctx, mounts, layer, &room{limit: 100 * leastFile}, &names{}))
		content, err := os.ReadFile(filepath.Join(dir, "dir", "file"))
		must.NoError(t, err)
		must.Eq(t, "xxx", string(content))
	}
	marker, err := os.Lstat(filepath.Join(upper, "gone"))
	must.NoError(t, err)
	must.Eq(t, os.ModeCharDevice|os.ModeDevice, marker.Mode().Type())
	_, err = os.Lstat(filepath.Join(native, "gone"))
	must.ErrorIs(t, err, os.ErrNotExist)
	made, err := os.Stat(filepath.Join(upper, "dir")) // as the layer below has it
	must.NoError(t, err)
	must.Eq(t, 0o711, made.Mode().Perm())

	// What the native snapshotter copied counts.
	must.NoError(t, os.WriteFile(filepath.Join(native, "below"), make([]byte, 10*leastFile), 0o600))
	for fits, limit := range map[bool]int64{true: 14 * leastFile, false: 10 * leastFile} {
		left := &room{limit: limit}
		err := applyTo(ctx, bind, layerOf(t, tar.Header{Name: "more"}), left, &names{})
		must.Eq(t, fits, err == nil, must.Sprint(left.files.Load()))
		must.Eq(t, !fits, errors.Is(err, ErrImageTooLarge))
	}
	must.Error(t, applyTo(ctx, []mount.Mount{{Type: "bind", Source: filepath.Join(native, "none")}}, layerOf(t), &room{}, &names{}))
	must.Error(t, applyTo(ctx, []mount.Mount{{Type: "none such"}}, layerOf(t), &room{}, &names{}))
	for _, mounts := range [][]mount.Mount{overlay, bind, {{Type: "tmpfs", Source: "tmpfs"}}, {bind[0], bind[0]}} {
		must.NoError(t, applyTo(ctx, mounts, layerOf(t, tar.Header{Name: "whole", Size: 100}), &room{}, &names{}))
		must.Error(t, applyTo(ctx, mounts, io.LimitReader(layerOf(t, tar.Header{Name: "part", Size: 100}), 550), &room{}, &names{}))
	}
	must.Eq(t, "b", valueOf([]string{"a=b", "c=d", "a=e"}, "a="))
	must.Eq(t, "d", valueOf([]string{"a=b", "c=d"}, "c="))
	must.Eq(t, "", valueOf([]string{"a=b"}, "b="))
	_, err = unpacker{}.Compare(ctx, nil, nil, []diff.Opt{}...)
	must.True(t, errdefs.IsNotImplemented(err))
}

// heapBytes is what this process has in memory now.
//
// A file that was open is freed after the collection that finds it, at a time of its own.
func heapBytes() int {
	var stats runtime.MemStats
	for last, same := 0, 0; same < 3; last = int(stats.HeapAlloc) {
		runtime.GC()
		runtime.Gosched()
		if runtime.ReadMemStats(&stats); int(stats.HeapAlloc) < last-1<<10 {
			same = 0
		} else {
			same++
		}
	}
	return int(stats.HeapAlloc)
}

// heapMiB is the same in MiB.
func heapMiB() int { return heapBytes() >> 20 }

// TestWhatImagesTakeTogether is the figure in docs/security.md: of the layers that need most
// to be unpacked, as many as are unpacked at once, and of the descriptions that need most to be read.
func TestWhatImagesTakeTogether(t *testing.T) {
	random := make([]byte, 2*maxWindow)
	_, err := rand.Read(random)
	must.NoError(t, err)
	packed := zstdOf(t, maxWindow, random)
	before := heapMiB()
	var open []io.Closer
	for range maxUnpacks {
		plain, err := decompress(bytes.NewReader(packed))
		must.NoError(t, err)
		_, err = io.CopyN(io.Discard, plain, 2*maxWindow-1)
		must.NoError(t, err)
		open = append(open, plain)
	}
	took := heapMiB() - before
	t.Logf("%d unpackings take %d MiB", maxUnpacks, took)
	must.LessEq(t, 24*maxUnpacks, took)
	for _, plain := range open {
		must.NoError(t, plain.Close())
	}

	for name, worst := range map[string]struct {
		before, item, after string
		into                any
	}{
		"volumes":   {`{"config":{"Volumes":{`, `"%x":{}`, `}}}`, &ispec.Image{}},
		"history":   {`{"history":[`, `{}`, `]}`, &ispec.Image{}},
		"layers":    {`{"layers":[`, `{}`, `]}`, &ispec.Manifest{}},
		"manifests": {`{"manifests":[`, `{}`, `]}`, &ispec.Index{}},
		"platforms": {`{"manifests":[`, `{"platform":{}}`, `]}`, &ispec.Index{}},
	} {
		text := []byte(worst.before)
		for n := 0; len(text) < maxDescription-30; n++ {
			if n > 0 {
				text = append(text, ',')
			}
			text = append(text, strings.Replace(worst.item, "%x", strconv.FormatInt(int64(n), 36), 1)...)
		}
		text = append(text, worst.after...)
		before = heapMiB()
		must.NoError(t, json.Unmarshal(text, worst.into))
		took = heapMiB() - before
		t.Logf("a description of %d KiB with many %s takes %d MiB", len(text)>>10, name, took)
		must.LessEq(t, 25, took) // 32 pulls at once
		runtime.KeepAlive(worst.into)
	}
	runtime.KeepAlive(packed)
}
