// Package hubv1 has the types and routes of the hub's API, generated from its description, and the
// description.
package hubv1

import _ "embed"

// Description is the API's description, in YAML.
//
//go:embed openapi.yaml
var Description []byte
