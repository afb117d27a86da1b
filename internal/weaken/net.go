package weaken

// ConnectionRoom closes idle and unauthenticated connections of a full listener; without
// it, new connections wait until others end.
const ConnectionRoom Defence = "connection-room"

// RegistryCredentials sends a registry's credentials to that registry only, and never
// over plain HTTP.
const RegistryCredentials Defence = "registry-credentials" //nolint:gosec // is none

// RegistryRate ends transfers that are too slow.
const RegistryRate Defence = "registry-rate"

// PullSlots gives each image slots of its own for fetching layers, and lets a layer
// occupy an unpacking slot only while it has data to unpack. Without it, one slow
// registry's layers delay all others.
const PullSlots Defence = "pull-slots"

// LayerEntries limits the number of files in a layer and in an image, and keeps some
// inodes free.
const LayerEntries Defence = "layer-entries"

// ArtifactNames refuses names of an artifact's files that are no paths below its volume.
const ArtifactNames Defence = "artifact-names"

// OverlaySenders accepts packets of overlay networks only from nodes that the managers or the
// gossip named, and keeps containers from the gossip's port.
const OverlaySenders Defence = "overlay-senders"

// CompileTurns gives each owner, namespace and image turns of its own for compiling WebAssembly
// modules, on several slots, and lets a start wait for its turn for a bounded time. Without it,
// all compilations wait in one queue.
const CompileTurns Defence = "compile-turns"

// RegistryNames gives the spellings of a registry's name one normal form. Without it, image
// policies compare names as they are typed.
const RegistryNames Defence = "registry-names"

// HubRoles keeps operators of a hub from being taken for a hub: their names and certificates are
// not a hub's, and a worker takes only a certificate with the role of a manager.
const HubRoles Defence = "hub-roles"

// HubJoins limits how many nodes join a hub.
const HubJoins Defence = "hub-joins"

// NameBudget limits how many questions per second the name server answers a sandbox.
const NameBudget Defence = "name-budget"

// EgressNames answers a sandbox with an egress list only questions of the list's names.
const EgressNames Defence = "egress-names"

// EgressVerify refuses connections of a sandbox with verify=sni to an address of a permitted name for another name.
const EgressVerify Defence = "egress-verify"

// MetadataRoutes refuses connections of a sandbox without an egress list to the addresses of a cloud's credentials.
const MetadataRoutes Defence = "metadata-routes"

// EgressRules refuses connections of a sandbox with an egress list to other destinations than those of the list.
const EgressRules Defence = "egress-rules"
