package api

import (
	"net/http"
	"strconv"
	"strings"
)

// media is a media type of the API.
type media string

const (
	jsonMedia     media = "application/json"
	protobufMedia media = "application/x-protobuf"
	recordMedia   media = "application/recordio"
)

const (
	anyForms     = "application/json or application/x-protobuf or application/recordio"
	messageForms = "application/json or application/x-protobuf"
)

// lastHeader returns the value of a header. If the header has several lines, the last
// one is used, as Mesos does: mesos-go sends two Accept lines and means the second.
func lastHeader(h http.Header, name string) (value string, ok bool) {
	lines := h.Values(name)
	if len(lines) == 0 {
		return "", false
	}
	return lines[len(lines)-1], true
}

// contentType determines the media type of the request.
func (x *Exchange) contentType(h http.Header) error {
	kind, ok := lastHeader(h, "Content-Type")
	message, messageSet := lastHeader(h, "Message-Content-Type")
	if !ok {
		return bad("Expecting 'Content-Type' to be present")
	}
	switch media(kind) {
	case jsonMedia, protobufMedia:
		if messageSet {
			return unsupported("Expecting 'Message-Content-Type' to be not set for non-streaming requests")
		}
		x.requestMedia = media(kind)
		return nil
	case recordMedia:
		x.requestMedia, x.requestStreamed = media(message), true
		if !messageSet {
			return bad("Expecting 'Message-Content-Type' to be set for streaming requests")
		}
		if x.requestMedia != jsonMedia && x.requestMedia != protobufMedia {
			return unsupported("Expecting 'Message-Content-Type' of " + messageForms)
		}
		return nil
	}
	return unsupported("Expecting 'Content-Type' of " + anyForms)
}

// accept determines the media type of the answer: the first one that the client
// accepts.
func (x *Exchange) accept(h http.Header) error {
	_, messageSet := lastHeader(h, "Message-Accept")
	for _, m := range []media{jsonMedia, protobufMedia} {
		if accepts(h, "Accept", m) {
			if messageSet {
				return notAcceptable("Expecting 'Message-Accept' to be not set for non-streaming responses")
			}
			x.responseMedia = m
			return nil
		}
	}
	if !accepts(h, "Accept", recordMedia) {
		return notAcceptable("Expecting 'Accept' to allow " + anyForms)
	}
	x.responseStreamed = true
	for _, m := range []media{jsonMedia, protobufMedia} {
		if accepts(h, "Message-Accept", m) {
			x.responseMedia = m
			return nil
		}
	}
	return notAcceptable("Expecting 'Message-Accept' to allow " + messageForms)
}

// accepts reports whether the named header accepts m. A missing header accepts
// everything. Of quality values only zero has an effect.
func accepts(h http.Header, name string, m media) bool {
	value, ok := lastHeader(h, name)
	if !ok {
		return true
	}
	for item := range strings.SplitSeq(value, ",") {
		kind, params, _ := strings.Cut(item, ";")
		kind = strings.ToLower(strings.TrimSpace(kind))
		if (kind == string(m) || kind == "*/*" || kind == "application/*") && !hasZeroWeight(params) {
			return true
		}
	}
	return false
}

// hasZeroWeight reports whether the parameters of a media range have a quality value of
// zero.
func hasZeroWeight(params string) bool {
	for p := range strings.SplitSeq(params, ";") {
		name, q, ok := strings.Cut(strings.TrimSpace(p), "=")
		if !ok || !strings.EqualFold(name, "q") {
			continue
		}
		if weight, err := strconv.ParseFloat(q, 64); err == nil && weight == 0 {
			return true
		}
	}
	return false
}
