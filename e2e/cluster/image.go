// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"bytes"
	"fmt"
	"path/filepath"

	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/nomad-gpu/nomad-gpu/internal/testimage"
)

// Image is the image that every simulated machine has: one static program that
// prints what a GPU program would see (e2e/gpuprobe). It asks for all GPUs, as
// NVIDIA's own images do.
const Image = "localhost/gpuprobe:1"

var imageConfig = ispec.ImageConfig{
	Entrypoint: []string{"/bin/gpuprobe"},
	Env: []string{
		"PATH=/bin",
		"NVIDIA_VISIBLE_DEVICES=all",
		"NVIDIA_DRIVER_CAPABILITIES=all",
		"CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7",
		"CUDA_MPS_PIPE_DIRECTORY=/nowhere",
	},
}

func imageFiles(bin string) map[string]testimage.File {
	files := map[string]testimage.File{
		"/bin/gpuprobe": {Source: filepath.Join(bin, "e2e", "gpuprobe"), Mode: 0o755},
		"/tmp":          {Mode: 0o777},
		"/etc/passwd":   {Content: []byte("root:x:0:0:root:/:/bin/gpuprobe\nnobody:x:65534:65534:nobody:/:/bin/gpuprobe\n")},
	}
	// Releases without MPS v3 have no such program.
	if client := filepath.Join(bin, "e2e", "mps-client"); exists(client) {
		files["/bin/mps-client"] = testimage.File{Source: client, Mode: 0o755}
	}
	return files
}

// ImageArchive makes that image from what "make build" made in bin.
func ImageArchive(bin string) ([]byte, error) {
	var archive bytes.Buffer
	err := testimage.Build(&archive, Image, imageFiles(bin), imageConfig)
	return archive.Bytes(), err
}

// ImageImport is that image for "docker import" and "podman import": its files,
// and the options that bring the rest.
func ImageImport(bin string) (layer []byte, options []string, err error) {
	layer, err = testimage.Layer(imageFiles(bin))
	options = []string{"--change", fmt.Sprintf("ENTRYPOINT [%q]", imageConfig.Entrypoint[0])}
	for _, entry := range imageConfig.Env {
		options = append(options, "--change", "ENV "+entry)
	}
	return layer, options, err
}
