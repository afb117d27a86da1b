package weaken

// Beneath resolves paths that a workload owns in part below a trusted directory and through no link
// (internal/beneath).
const Beneath Defence = "beneath"

// NomadBinds forbids a job to bind a directory that contains the sources of its other
// mounts.
const NomadBinds Defence = "nomad-binds"

// CopiedModes leaves out the setuid and setgid bits of a copied file when the copy has another
// owner or group.
const CopiedModes Defence = "copied-modes"

// FailedVolumes removes the anonymous volumes of a container after a failed create.
const FailedVolumes Defence = "failed-volumes"

// ImageVolumes limits how many volumes an image may declare.
const ImageVolumes Defence = "image-volumes"
