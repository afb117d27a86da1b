package weaken

// ConnectionRoom closes idle and unauthenticated connections where a listener has no
// room for more; without it new ones wait until others end by themselves.
const ConnectionRoom Defence = "connection-room"

// RegistryCredentials keeps a registry's credentials from other hosts and from plain
// HTTP.
const RegistryCredentials Defence = "registry-credentials" //nolint:gosec // is none

// RegistryRate ends a transfer that brings too few bytes a second.
const RegistryRate Defence = "registry-rate"

// PullSlots gives each image slots of its own to fetch layers, and lets a layer hold
// its turn to be unpacked only while there is something to unpack; without it a slow
// registry's layers hold up all others.
const PullSlots Defence = "pull-slots"

// LayerEntries bounds the entries of a layer and an image, and keeps inodes free.
const LayerEntries Defence = "layer-entries"
