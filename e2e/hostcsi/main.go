// SPDX-License-Identifier: MPL-2.0

// Command hostcsi is a CSI node plugin, as Nomad runs them in tasks: every volume is a directory
// in /volumes, which it mounts where Nomad says, for Nomad to hand it to other tasks.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func main() {
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, "hostcsi:", err)
		os.Exit(1)
	}
}

func serve() error {
	path := strings.TrimPrefix(os.Getenv("CSI_ENDPOINT"), "unix://")
	_ = os.Remove(path) // of an earlier process
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, identity{})
	csi.RegisterNodeServer(server, node{})
	return server.Serve(listener)
}

type identity struct {
	csi.UnimplementedIdentityServer
}

func (identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: "hostcsi", VendorVersion: "1"}, nil
}

func (identity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{}, nil
}

func (identity) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

type node struct{ csi.UnimplementedNodeServer }

func (node) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: "node"}, nil
}

func (node) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	stages := &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME}}
	return &csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{{Type: stages}}}, nil
}

// NodeStageVolume mounts the volume for the node, once for all tasks that use it alike.
func (node) NodeStageVolume(_ context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	volume := filepath.Join("/volumes", filepath.Base(r.VolumeId))
	if err := os.MkdirAll(volume, 0o755); err != nil {
		return nil, err
	}
	return &csi.NodeStageVolumeResponse{}, mount(volume, r.StagingTargetPath)
}

// NodePublishVolume mounts it for one allocation.
func (node) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	err := mount(r.StagingTargetPath, r.TargetPath)
	if err == nil && r.Readonly {
		err = unix.Mount("", r.TargetPath, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
	}
	return &csi.NodePublishVolumeResponse{}, err
}

func (node) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	return &csi.NodeUnpublishVolumeResponse{}, unmount(r.TargetPath)
}

func (node) NodeUnstageVolume(_ context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return &csi.NodeUnstageVolumeResponse{}, unmount(r.StagingTargetPath)
}

func mount(source, target string) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	return unix.Mount(source, target, "", unix.MS_BIND, "")
}

// unmount is also asked for volumes that are unmounted already.
func unmount(target string) error {
	if err := unix.Unmount(target, 0); err != nil && err != unix.EINVAL && err != unix.ENOENT {
		return err
	}
	return nil
}
