// SPDX-License-Identifier: MPL-2.0

// Command site makes a static site of the repository's Markdown: a page for each
// document, with the contents of docs/README.md beside it. It needs no network, and
// neither do its pages.
//
//	go run . -root ../.. -out ../../bin/site
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	root := flag.String("root", "../..", "the `folder` of the repository")
	out := flag.String("out", "../../bin/site", "the `folder` to write to")
	flag.Parse()
	if err := build(*root, *out); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("%s/index.html\n", *out)
}
