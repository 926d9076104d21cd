import java.util.Arrays;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;
import software.amazon.dynamodb.services.local.main.ServerRunner;
import software.amazon.dynamodb.services.local.server.DynamoDBProxyServer;

/** DynamoDB Local on loopback alone: by itself it listens on every interface, and has no option for that. */
public final class LoopbackServer {
    public static void main(String[] arguments) throws Exception {
        var out = System.out;
        System.setOut(System.err);
        DynamoDBProxyServer local = ServerRunner.createServerFromCommandLineArgs(arguments);
        var field = DynamoDBProxyServer.class.getDeclaredField("server");
        field.setAccessible(true);
        Server jetty = (Server) field.get(local);
        Arrays.stream(jetty.getConnectors()).forEach(connector -> ((ServerConnector) connector).setHost("127.0.0.1"));
        local.start();
        int port = ((ServerConnector) jetty.getConnectors()[0]).getLocalPort();
        out.println("listening on http://127.0.0.1:" + port);
        local.join();
    }
}
