# Lines back as they came, by buffered streams: echo.pl server PORT | client PORT...
use strict;
use warnings;
use IO::Handle;
use IO::Socket::INET;

my ($role, @ports) = @ARGV;
if ($role eq "server") {
    local $SIG{CHLD} = "IGNORE";
    my $listener = IO::Socket::INET->new(Listen => 5, LocalAddr => "127.0.0.1", LocalPort => $ports[0], ReuseAddr => 1) or die $!;
    while (my $connection = $listener->accept) {
        next if fork;
        $connection->autoflush(1);
        print $connection $_ while <$connection>;
        exit 0;
    }
}
for my $port (@ports) {
    my $connection = IO::Socket::INET->new(PeerAddr => "127.0.0.1", PeerPort => $port) or die $!;
    $connection->autoflush(1);
    for my $number (1 .. 10000) {
        my $line = "$number " . "x" x ($number % 2000) . "\n";
        print $connection $line;
        my $back = <$connection>;
        die "line $number came back different" unless defined $back && $back eq $line;
    }
    print "every line came back\n";
}
