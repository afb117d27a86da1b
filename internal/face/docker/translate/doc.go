// Package translate makes requests for containers of the documents of Docker's API. It completes a document as dockerd does, so that
// inspect can show it and a client can send it back, and refuses settings that a node does not have by their names. It neither reads the
// node nor calls the engine. Start at Read.
package translate
