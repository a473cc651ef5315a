//go:build cgo

package solace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"solace.dev/go/messaging/pkg/solace"
	"solace.dev/go/messaging/pkg/solace/subcode"
)

// What a Probe can find wrong, beside the errors of Validate.
var (
	ErrUnauthorized      = errors.New("the broker refuses the credentials")
	ErrUnknownVPN        = errors.New("the broker has no such message VPN for this user")
	ErrUnknownQueue      = errors.New("the queue does not exist")
	ErrForbidden         = errors.New("the user may not consume from the queue")
	ErrBrokerCertificate = errors.New("the broker's certificate is not trusted")
	ErrNoLibrary         = errors.New("a library that the client needs is not installed")
)

// Probe connects and binds once; Run goes on with what it bound. It returns an error, one of those above or of Validate, only for what
// waiting does not mend. For a broker that is away or a queue that is shut it returns nil: Run tries again.
//
// The same refusals later are no reason to end: they come and go while a broker is set up anew.
func (s *Source) Probe(ctx context.Context) error {
	x, err := s.open(ctx)
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.probed = x
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if lasting := lasting(err); lasting != nil {
		return lasting
	}
	s.setCurrent(nil, err)
	s.logger.WarnContext(ctx, "the queue cannot be bound yet, trying again", slog.String("error", err.Error()))
	return nil
}

// lasting returns nil for what may pass. The client's subcodes are read from the broker's words.
func lasting(err error) error {
	_, unauthorized := errors.AsType[*solace.AuthenticationError](err)
	native, isNative := errors.AsType[*solace.NativeError](err)
	sentinel := error(nil)
	switch {
	case unauthorized:
		sentinel = ErrUnauthorized
	case isNative:
		sentinel = lastingSubcodes()[native.SubCode()]
	case errors.Is(err, ErrSecret):
		return err
	}
	if sentinel == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", sentinel, err)
}

func lastingSubcodes() map[subcode.Code]error {
	return map[subcode.Code]error{
		subcode.LoginFailure:                              ErrUnauthorized,
		subcode.BasicAuthenticationIsShutdown:             ErrUnauthorized,
		subcode.ClientCertificateAuthenticationIsShutdown: ErrUnauthorized,
		subcode.UntrustedClientCertificate:                ErrUnauthorized,
		subcode.ClientCertificateDateInvalid:              ErrUnauthorized,
		subcode.MsgVpnNotAllowed:                          ErrUnknownVPN,
		subcode.UnknownQueueName:                          ErrUnknownQueue,
		subcode.QueueNotFound:                             ErrUnknownQueue,
		subcode.PermissionNotAllowed:                      ErrForbidden,
		subcode.ClientAclDenied:                           ErrForbidden,
		subcode.UntrustedCertificate:                      ErrBrokerCertificate,
		subcode.UntrustedCommonname:                       ErrBrokerCertificate,
		subcode.CertificateDateInvalid:                    ErrBrokerCertificate,
		subcode.FailedLoadingTruststore:                   ErrTrustStore,
		subcode.FailedLoadingCertificateAndKey:            ErrClientCertificate,
		subcode.LibraryNotLoaded:                          ErrNoLibrary,
	}
}
