package weaken

// Beneath resolves paths of which a workload owns a part below a trusted directory and
// through no link (internal/beneath).
const Beneath Defence = "beneath"

// NomadBinds forbids a job to bind a directory that contains the sources of its other
// mounts.
const NomadBinds Defence = "nomad-binds"
