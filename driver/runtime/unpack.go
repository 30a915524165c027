// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/containerd/continuity/fs"
	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Layers are unpacked in this process, by containerd's own code: its service unpacks
// whatever it is given, and a layer of some kilobytes may be any number of gigabytes.
// Neither its packed size nor what a manifest says of it tells, nor does the length of
// the tar in it, which may name holes. So each file is counted before it is written.

const (
	// leastFile is what a file takes at least, so that empty ones run out too.
	leastFile = 4 << 10
	// maxUnpacks is how many layers and archives are unpacked at once, on the whole node.
	maxUnpacks = 8
	// maxNames bounds the memory for a layer's files while it is unpacked: their names,
	// and the attributes of directories. It is enough for two million files. Of the layers
	// that are unpacked at the same time one may take more than manyNames.
	maxNames  = 512 << 20
	manyNames = 32 << 20
	// rememberedFile is what a file takes of that beside its names, rememberedDir what a directory
	// takes more, whose header is kept to the end: with its attributes, and with extended ones in
	// a second map.
	rememberedFile       = 128
	rememberedDir        = 320
	rememberedAttributes = 368
	rememberedAttribute  = 64
	// maxWindow is how much of a stream zstd may need to look back at: what every decoder is
	// to support, by RFC 8878, and as much as the programs that build images use.
	maxWindow = 8 << 20
	// maxPadding is how many zeros may follow a tar's end. GNU tar fills up to 10 KiB unless
	// it is told to fill more.
	maxPadding = 1 << 20
	// readSize is how much of a layer containerd is asked for at a time.
	readSize = 1 << 20
)

// decompress returns a stream in plain, whether it is compressed or not.
func decompress(packed io.Reader) (io.ReadCloser, error) {
	buffered := bufio.NewReaderSize(packed, readSize)
	start, err := buffered.Peek(10)
	if err != nil && !errors.Is(err, io.EOF) { // it would be taken for a layer that is not compressed
		return nil, err
	}
	if compression.DetectCompression(start) != compression.Zstd {
		return compression.DecompressStream(buffered)
	}
	decoder, err := zstd.NewReader(buffered, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, err
	}
	return zstdReader{decoder.IOReadCloser()}, nil
}

// zstdReader explains the error of a layer that needs too much memory.
type zstdReader struct{ io.ReadCloser }

func (r zstdReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if errors.Is(err, zstd.ErrWindowSizeExceeded) {
		err = fmt.Errorf("%w: a layer is packed by zstd with a window of more than %d MiB; pack it without --long or --ultra", ErrImageTooLarge, maxWindow>>20)
	}
	return n, err
}

// room is how much the layers of one image may still take. It counts files on disk
// and bytes read, which differ by holes and by bytes outside of files.
type room struct {
	limit        int64
	files, bytes atomic.Int64
}

type roomKey struct{}

// withRoom makes all layers unpacked under the context share one limit.
func (r *Runtime) withRoom(ctx context.Context) context.Context {
	return context.WithValue(ctx, roomKey{}, &room{limit: r.config.MaxUnpackedBytes})
}

// take refuses n more bytes where used holds too many. Without a limit it counts only.
func (m *room) take(used *atomic.Int64, n int64) error {
	if total := used.Add(n); m.limit > 0 && (total > m.limit || total < 0 || n < 0) {
		return fmt.Errorf("%w: unpacked, it is larger than the %d MiB that this node's operator allows (max_unpacked_size)", ErrImageTooLarge, m.limit>>20)
	}
	return nil
}

// unpacker unpacks layers in place of containerd's diff service.
type unpacker struct{ runtime *Runtime }

// Compare is not what the driver needs a diff service for.
func (unpacker) Compare(context.Context, []mount.Mount, []mount.Mount, ...diff.Opt) (ispec.Descriptor, error) {
	return ispec.Descriptor{}, errdefs.ErrNotImplemented
}

// Apply unpacks a layer into a snapshot, and returns its plain descriptor.
func (u unpacker) Apply(ctx context.Context, layer ispec.Descriptor, mounts []mount.Mount, _ ...diff.ApplyOpt) (ispec.Descriptor, error) {
	give, err := u.runtime.unpackPlace(ctx)
	if err != nil {
		return ispec.Descriptor{}, err
	}
	defer give()
	plain, err := u.runtime.plainLayer(ctx, layer)
	if err != nil {
		return ispec.Descriptor{}, err
	}
	defer plain.Close()
	names := &names{many: u.runtime.many}
	defer names.release()
	if err := applyTo(ctx, mounts, plain, plain.left, names); err != nil {
		return ispec.Descriptor{}, err
	}
	if err := padding(plain); err != nil {
		return ispec.Descriptor{}, fmt.Errorf("layer %s: %w", layer.Digest, err)
	}
	return ispec.Descriptor{MediaType: ispec.MediaTypeImageLayer, Size: plain.size, Digest: plain.digester.Digest()}, nil
}

// unpackPlace waits until one more layer or archive may be read.
func (r *Runtime) unpackPlace(ctx context.Context) (give func(), err error) {
	of := tenantOf(ctx)
	return r.unpacks.Take(ctx, of.namespace, of.job)
}

// padding reads the bytes after a tar's end, and refuses any but zeros, maxPadding
// at most.
func padding(plain io.Reader) error {
	buffer := make([]byte, 32<<10)
	for total := 0; ; {
		n, err := plain.Read(buffer)
		if total += n; total > maxPadding {
			return fmt.Errorf("%w: more than %d KiB follow its end", ErrImageTooLarge, maxPadding>>10)
		}
		if bytes.ContainsFunc(buffer[:n], func(b rune) bool { return b != 0 }) {
			return fmt.Errorf("%w: something else than zeros follows its end", ErrImageTooLarge)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// plainLayer is a layer's content without compression, as far as there is room.
func (r *Runtime) plainLayer(ctx context.Context, layer ispec.Descriptor) (*plainLayer, error) {
	left, ok := ctx.Value(roomKey{}).(*room)
	if !ok {
		left = &room{limit: r.config.MaxUnpackedBytes}
	}
	blob, err := r.client.ContentStore().ReaderAt(ctx, layer)
	if err != nil {
		return nil, fmt.Errorf("read layer: %w", err)
	}
	plain, err := decompress(content.NewReader(blob))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read layer: %w", err), blob.Close())
	}
	return &plainLayer{plain: plain, blob: blob, left: left, digester: digest.Canonical.Digester()}, nil
}

type plainLayer struct {
	plain    io.ReadCloser
	blob     io.Closer
	left     *room
	digester digest.Digester
	size     int64
}

func (l *plainLayer) Read(p []byte) (int, error) {
	n, err := l.plain.Read(p)
	l.size += int64(n)
	_, _ = l.digester.Hash().Write(p[:n])
	if full := l.left.take(&l.left.bytes, int64(n)); full != nil {
		return 0, full
	}
	return n, err
}

// Close ends the program that decompresses, where there is one.
func (l *plainLayer) Close() error { return errors.Join(l.plain.Close(), l.blob.Close()) }

// applyTo writes a tar's files to where a snapshot is mounted or, where it is a plain
// directory, to that directory.
func applyTo(ctx context.Context, mounts []mount.Mount, layer io.Reader, left *room, names *names) error {
	bounded := archive.WithFilter(counted(ctx, left, names))
	if len(mounts) == 1 {
		switch m := mounts[0]; m.Type {
		case "overlay":
			options := []archive.ApplyOpt{bounded, archive.WithConvertWhiteout(archive.OverlayConvertWhiteout)}
			if lower := valueOf(m.Options, "lowerdir="); lower != "" {
				options = append(options, archive.WithParents(strings.Split(lower, ":")))
			}
			_, err := archive.Apply(ctx, valueOf(m.Options, "upperdir="), layer, options...)
			return err
		case "bind":
			// The native snapshotter has copied the layers below into it.
			below, err := fs.DiskUsage(ctx, m.Source)
			if err != nil {
				return fmt.Errorf("measure the layers below: %w", err)
			}
			if err := left.take(&left.files, below.Size); err != nil {
				return err
			}
			_, err = archive.Apply(ctx, m.Source, layer, bounded)
			return err
		}
	}
	return mount.WithTempMount(ctx, mounts, func(root string) error {
		_, err := archive.Apply(ctx, root, layer, bounded)
		return err
	})
}

func valueOf(options []string, key string) string {
	for _, option := range options {
		if value, ok := strings.CutPrefix(option, key); ok {
			return value
		}
	}
	return ""
}

// counted passes files on for which there is room. Their sizes are those that they will
// have, holes included, since those are written as zeros.
func counted(ctx context.Context, left *room, names *names) archive.Filter {
	return func(file *tar.Header) (bool, error) {
		if err := names.add(ctx, file); err != nil {
			return false, err
		}
		if err := left.take(&left.files, leastFile); err != nil {
			return false, err
		}
		return true, left.take(&left.files, file.Size)
	}
}

// names counts the memory for a layer's files.
type names struct {
	bytes int
	// many is full while another layer has more than manyNames; nil for no bound.
	many chan struct{}
	has  bool
}

func (n *names) add(ctx context.Context, file *tar.Header) error {
	n.bytes += rememberedFile + len(file.Name) + len(file.Linkname)
	for key, value := range file.PAXRecords {
		n.bytes += len(key) + len(value)
	}
	if file.Typeflag == tar.TypeDir {
		n.bytes += rememberedDir + len(file.Name)
		//lint:ignore SA1019 The reader fills it.
		for _, attributes := range []map[string]string{file.PAXRecords, file.Xattrs} {
			if len(attributes) > 0 {
				n.bytes += rememberedAttributes + len(attributes)*rememberedAttribute
			}
		}
	}
	if n.bytes > maxNames {
		return fmt.Errorf("%w: the names of a layer's files have more than %d MiB", ErrImageTooLarge, maxNames>>20)
	}
	if n.bytes <= manyNames || n.has || n.many == nil {
		return nil
	}
	select {
	case n.many <- struct{}{}:
		n.has = true
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (n *names) release() {
	if n.has {
		<-n.many
		n.has = false
	}
}
