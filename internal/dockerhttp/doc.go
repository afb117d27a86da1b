// Package dockerhttp has the parts of Docker's Engine API that do not depend on the objects behind it: versions, routes, errors and
// their statuses, JSON, filters, credentials of registries, streams of JSON, hijacked connections and their frames. The node's face
// and the hub use it. It knows neither the engine nor the hub.
//
// The facts are those of dockerd 28 (API 1.51). Start at Mux.
package dockerhttp
