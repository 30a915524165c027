package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
)

const versionHelp = `Shows the version that Go recorded when the command was built.`

func runVersion(args []string, stdout, stderr io.Writer) int {
	if code, done := parseFlags(newFlags("version", versionHelp, stderr), args, stdout); done {
		return code
	}
	version := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		version = info.Main.Version
	}
	fmt.Fprintf(stdout, "nomad-gpu-scheduler %s %s %s/%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return exitOK
}
