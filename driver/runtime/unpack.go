package runtime

import (
	"archive/tar"
	"bufio"
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
	// maxNames bounds what is remembered of a layer's files while it is unpacked: their
	// names, and the attributes of directories. It is enough for two million files.
	maxNames = 512 << 20
	// rememberedFile is what a file takes of that beside its names.
	rememberedFile = 128
	// maxWindow is how much of a stream zstd may need to look back at; it is the most
	// that the zstd program itself takes without being told to.
	maxWindow = 1 << 27
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
	decoder, err := zstd.NewReader(buffered, zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, err
	}
	return decoder.IOReadCloser(), nil
}

// room is how much the layers of one image may still take. There is one for what lies
// on disk and one for what is read, which differ by holes and by what is no file's.
type room struct {
	limit        int64
	files, bytes atomic.Int64
}

type roomKey struct{}

// withRoom makes what is unpacked under the context share one limit.
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

// Apply unpacks a layer into a snapshot, and returns what it is without compression.
func (u unpacker) Apply(ctx context.Context, layer ispec.Descriptor, mounts []mount.Mount, _ ...diff.ApplyOpt) (ispec.Descriptor, error) {
	plain, err := u.runtime.plainLayer(ctx, layer)
	if err != nil {
		return ispec.Descriptor{}, err
	}
	defer plain.Close()
	if err := applyTo(ctx, mounts, plain, plain.left); err != nil {
		return ispec.Descriptor{}, err
	}
	if _, err := io.Copy(io.Discard, plain); err != nil { // what follows a tar's end
		return ispec.Descriptor{}, err
	}
	return ispec.Descriptor{MediaType: ispec.MediaTypeImageLayer, Size: plain.size, Digest: plain.digester.Digest()}, nil
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
func applyTo(ctx context.Context, mounts []mount.Mount, layer io.Reader, left *room) error {
	bounded := archive.WithFilter(counted(left))
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
func counted(left *room) archive.Filter {
	names := 0
	return func(file *tar.Header) (bool, error) {
		names += rememberedFile + len(file.Name) + len(file.Linkname)
		for key, value := range file.PAXRecords {
			names += len(key) + len(value)
		}
		if names > maxNames {
			return false, fmt.Errorf("%w: the names of a layer's files have more than %d MiB", ErrImageTooLarge, maxNames>>20)
		}
		if err := left.take(&left.files, leastFile); err != nil {
			return false, err
		}
		return true, left.take(&left.files, file.Size)
	}
}
