// SPDX-License-Identifier: MPL-2.0

// Package dcmi calls Huawei's card management library, libdcmi.so, which comes with the
// driver of Ascend devices. It is opened at run time: nothing is linked, and a machine
// without it is a machine without such devices.
//
// A device is addressed by the number of its card and its own on the card. Functions that
// a library does not have, as older ones, fail with ErrUnsupported, as those do that the
// device itself does not know.
package dcmi
